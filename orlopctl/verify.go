package main

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/bundle"
)

// verified is the result of the verification of a bundle. Every byte of the bundle was verified.
type verified struct {
	Statement bundle.Statement `json:"statement"`
	Signed    string           `json:"signed"`
	// Provenance is nil if it was not verified.
	Provenance *bundle.Provenance `json:"provenance,omitempty"`
}

// verifyCommand checks files; it calls no machine.
func verifyCommand(ios *iostreams.Streams) *cobra.Command {
	var keys releaseKeys
	var file, attested string
	c := &cobra.Command{
		Use: "verify -f BUNDLE --keys KEYS", Short: "Verify an upgrade bundle and its provenance without a machine", Args: fileOrFlag,
		Long: "Verify an upgrade bundle without a machine: the signatures of its statement, and each of its parts. With\n" +
			"--provenance, also verify the provenance (SLSA, in-toto): its signatures, and that it describes the same parts. The\n" +
			"output then names the commit and the builder. A new build of the commit has the same digests.",
		Example: "  orlopctl verify -f orlop.bundle --keys keys.pem --provenance provenance.intoto.jsonl",
		RunE: func(*cobra.Command, []string) error {
			trust, err := keys.trust()
			if err != nil {
				return err
			}
			v, err := verifyFiles(file, attested, trust)
			if err != nil {
				return err
			}
			v.Signed = keys.String()
			if !ios.Human() {
				return ios.PrintPlain(v)
			}
			return v.print(ios)
		},
	}
	keys.register(c)
	c.Flags().StringVarP(&file, "file", "f", "", "the upgrade bundle")
	c.Flags().StringVar(&attested, "provenance", "", "file with the provenance of the bundle (provenance.intoto.jsonl beside it)")
	must(c.MarkFlagRequired("file"))
	must(c.MarkFlagRequired("keys"))
	return c
}

// verifyFiles verifies the bundle in file. It also verifies its provenance, if attested names a
// file.
func verifyFiles(file, attested string, trust bundle.Trust) (v verified, err error) {
	f, err := os.Open(file)
	if err != nil {
		return v, exit.Usagef("verify: cannot read the bundle: %w", err)
	}
	defer f.Close()
	if v.Statement, err = bundle.ReadAll(f, trust); err != nil {
		return v, fmt.Errorf("%s: %w", file, err)
	}
	if attested == "" {
		return v, nil
	}
	envelope, err := readProvenance(attested)
	if err != nil {
		return v, exit.Usagef("verify: cannot read the provenance: %w", err)
	}
	s, err := bundle.VerifyProvenance(envelope, trust, v.Statement)
	if err != nil {
		return v, fmt.Errorf("%s: %w", attested, err)
	}
	v.Provenance = &s
	return v, nil
}

// readProvenance reads a file. It reads up to the maximum size plus a byte, so that
// bundle.VerifyProvenance rejects a file that is too large.
func readProvenance(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, bundle.MaxProvenance+1))
}

// print prints the result as a table.
func (v verified) print(ios *iostreams.Streams) error {
	return iostreams.DrawTable(ios.Out, func(w *tabwriter.Writer) {
		s := v.Statement
		iostreams.Row(w, "VERSION", fmt.Sprintf("%s (profile %s, epoch %d)", s.Version, s.Profile, s.Epoch))
		iostreams.Row(w, "SIGNATURES", v.Signed)
		iostreams.Row(w, "ROOT", format.Clean(s.Root))
		iostreams.Row(w, "BILL OF MATERIALS", "sha256:"+s.SBOM.SHA256)
		if v.Provenance == nil {
			iostreams.Row(w, "PROVENANCE", "not verified: --provenance names its file")
			return
		}
		build := v.Provenance.Predicate
		commit := v.Provenance.Source()
		if commit == "" {
			commit = "unknown: the source was not exactly that of a commit"
		}
		iostreams.Row(w, "COMMIT", format.Clean(commit))
		iostreams.Row(w, "BUILDER", format.Clean(build.RunDetails.Builder.ID)+", "+format.Clean(build.RunDetails.Builder.Version["go"]))
		iostreams.Row(w, "INPUTS", fmt.Sprint(len(build.BuildDefinition.ResolvedDependencies)))
		for _, name := range build.BuildDefinition.ExternalParameters.Programs {
			iostreams.Row(w, "NOT BUILT", format.Clean(name)+": the build took a finished program")
		}
	})
}
