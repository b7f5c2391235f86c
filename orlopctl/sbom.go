package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/flags"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/client"
)

// releaseKeys are the flags for the public keys of releases.
type releaseKeys struct {
	file       string
	signatures int
}

// register adds the flags to a command.
func (k *releaseKeys) register(c *cobra.Command) {
	c.Flags().StringVar(&k.file, "keys", "", "file with the public keys of the releases (PEM), such as build/release/keys.pem")
	c.Flags().IntVar(&k.signatures, "signatures", 1, "require valid signatures of this number of keys")
	flags.Positive(c.Flags(), "signatures", &k.signatures)
}

// trust reads the keys of --keys with the threshold of --signatures.
func (k *releaseKeys) trust() (bundle.Trust, error) {
	text, err := os.ReadFile(k.file)
	if err != nil {
		return bundle.Trust{}, exit.Usagef("--keys: cannot read: %w", err)
	}
	trust, err := bundle.ParseTrust(text)
	if err != nil {
		return bundle.Trust{}, exit.Usagef("--keys: %s: %w", k.file, err)
	}
	if trust, err = trust.WithThreshold(k.signatures); err != nil {
		return bundle.Trust{}, exit.Usagef("--signatures: %w", err)
	}
	return trust, nil
}

// String describes the verified signatures.
func (k *releaseKeys) String() string {
	if k.signatures > 1 {
		return fmt.Sprintf("signed by at least %d of the keys in %s", k.signatures, k.file)
	}
	return "signed by a key in " + k.file
}

func sbomCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var keys releaseKeys
	c := &cobra.Command{
		Use: "sbom", Short: "Show the bill of materials of the running version", Args: cobra.NoArgs,
		Annotations: calls(api.Upgrade_ReadSBOM_FullMethodName),
		Long: "Show the bill of materials of the running version as SPDX 2.3 (JSON): the packages of Debian, the Go modules, the\n" +
			"programs with their digests, and the container images in the image. The command prints no document if its digest\n" +
			"is not the digest in the signed statement of the version. With --keys, it also verifies the signatures of the\n" +
			"statement: this proves that the document belongs to a release, even if the machine is compromised. A message on\n" +
			"the error output names the version.",
		Example: "  orlopctl sbom --keys build/release/keys.pem > sbom.spdx.json\n  orlopctl sbom | jq -r '.packages[] | .name + \" \" + .versionInfo'",
		RunE: func(*cobra.Command, []string) error {
			var trust *bundle.Trust
			if keys.file != "" {
				read, err := keys.trust()
				if err != nil {
					return err
				}
				trust = &read
			}
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				document, statement, err := readSBOM(ctx, c)
				if err != nil {
					return err
				}
				s, err := verifySBOM(document, statement, trust)
				if err != nil {
					return err
				}
				out, end := untrusted(ios)
				if _, err := out.Write(document); err != nil {
					return fmt.Errorf("output: cannot write: %w", err)
				}
				end()
				ios.Errorln(sbomNote(s, trust, &keys))
				return nil
			})
		},
	}
	keys.register(c)
	return c
}

// readSBOM returns the bill of materials of a machine and the signed statement. The statement is
// nil if the machine has none.
func readSBOM(ctx context.Context, c *client.Client) (document, statement []byte, err error) {
	stream, err := c.Upgrade.ReadSBOM(ctx, &api.ReadSBOMRequest{})
	if err != nil {
		return nil, nil, err
	}
	err = connect.Each(stream.Recv, func(r *api.ReadSBOMResponse) error {
		if statement == nil {
			statement = r.Statement
		}
		if document = append(document, r.Chunk...); len(document) > bundle.MaxSBOM {
			return fmt.Errorf("bill of materials: the machine sends more than %d MiB", bundle.MaxSBOM>>20)
		}
		return nil
	})
	return document, statement, err
}

// verifySBOM checks a bill of materials against the statement of its version. If trust is not nil,
// it also verifies the signatures of the statement. It returns the statement, or nil for an image
// without a statement.
func verifySBOM(document, statement []byte, trust *bundle.Trust) (*bundle.Statement, error) {
	if len(statement) == 0 && trust == nil {
		return nil, nil
	}
	if len(statement) == 0 {
		return nil, errors.New("bill of materials: cannot verify: the machine has no signed statement of its version, because its image was built without an upgrade bundle; without --keys, the document is shown unverified")
	}
	verify := func() (bundle.Statement, error) { return bundle.ParseUnverified(statement) }
	if trust != nil {
		verify = func() (bundle.Statement, error) { return bundle.Verify(statement, *trust) }
	}
	s, err := verify()
	if err == nil {
		err = s.CheckSBOM(document)
	}
	if err != nil {
		return nil, fmt.Errorf("bill of materials: cannot verify: %w", err)
	}
	return &s, nil
}

// sbomNote describes the verified facts. s is nil for an image without a statement.
func sbomNote(s *bundle.Statement, trust *bundle.Trust, keys *releaseKeys) string {
	switch {
	case s == nil:
		return "not verified: the machine has no signed statement of its version"
	case trust == nil:
		return fmt.Sprintf("version %s, profile %s: the document matches the statement of the machine; its signatures were not verified: --keys names the keys", s.Version, s.Profile)
	}
	return fmt.Sprintf("version %s, profile %s: the document matches the statement, which is %s", s.Version, s.Profile, keys)
}
