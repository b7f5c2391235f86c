package main

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/attest"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
)

// attestation is the verified attestation of a machine.
type attestation struct {
	attest.Result
	// EndorsementKey is the fingerprint of the EK. Trust is the reason to trust the EK.
	EndorsementKey string `json:"endorsementKey"`
	Trust          string `json:"trust"`
	MachineKey     string `json:"machineKey"`
	Configuration  string `json:"configuration,omitempty"` // SHA-256
	// PCRs are the values of PCR 0 to 15. Events are the lines of the event log. Both are set only
	// with --events.
	PCRs   []string `json:"pcrs,omitempty"`
	Events []string `json:"events,omitempty"`
}

// attestFlags are the flags of `orlopctl attest`.
type attestFlags struct {
	keys    releaseKeys
	bundles []string
	// eks are the fingerprints of the accepted EKs. makers is the file with the CA certificates of
	// the makers of TPMs.
	eks    []string
	makers string
	events bool
}

func attestCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var f attestFlags
	c := &cobra.Command{
		Use: "attest -f BUNDLE --keys KEYS", Short: "Verify what the machine booted, by its TPM", Args: fileOrFlag,
		Annotations: calls(api.Attestation_Attest_FullMethodName),
		Long: "Verify what the machine booted. Its TPM 2.0 signs a random number and the digests that the firmware and the boot\n" +
			"loader measured. The command compares them with the digests that it computes from the bundle of the version. It\n" +
			"prints the usual cause of each difference, and the exit status is 3, as for any machine that is not the expected one.\n" +
			"An upgrade does not replace the boot loader. If the machine was installed with a version that has another boot\n" +
			"loader, repeat -f with the bundle of that version.\n\n" +
			"--ek compares the endorsement key (EK) of the TPM with a recorded fingerprint, and --ek-ca verifies the certificate\n" +
			"that the maker of the TPM issued for the EK. Without --ek and --ek-ca, the command accepts any TPM, also an emulated\n" +
			"one: record the fingerprint that the first call shows.",
		Example: "  orlopctl attest -f orlop.bundle --keys keys.pem\n  orlopctl attest -f orlop.bundle --keys keys.pem --ek sha256:… --events",
		RunE: func(*cobra.Command, []string) error {
			releases, err := f.releases()
			if err != nil {
				return err
			}
			roots, err := f.roots()
			if err != nil {
				return err
			}
			return conn.CallFor(2*attestTime, func(ctx context.Context, c *client.Client) error {
				a, err := f.attest(ctx, c.Attestation, releases, roots)
				if err != nil {
					return err
				}
				return a.print(ios)
			})
		},
	}
	f.keys.register(c)
	c.Flags().StringArrayVarP(&f.bundles, "file", "f", nil, "upgrade bundle of a version that the machine may run (may be repeated)")
	c.Flags().StringArrayVar(&f.eks, "ek", nil, "fingerprint of the TPM's endorsement key, sha256:… (may be repeated, for several machines)")
	c.Flags().StringVar(&f.makers, "ek-ca", "", "file with CA certificates of makers of TPMs (PEM), with their intermediate CAs")
	c.Flags().BoolVar(&f.events, "events", false, "show the PCRs and the event log")
	must(c.MarkFlagRequired("file"))
	must(c.MarkFlagRequired("keys"))
	return c
}

// releases returns the expected measurements of the versions in the bundles of --bundle.
func (f *attestFlags) releases() (all []attest.Release, err error) {
	trust, err := f.keys.trust()
	if err != nil {
		return nil, err
	}
	for _, name := range f.bundles {
		r, err := readMeasurements(name, trust)
		if err != nil {
			return nil, exit.Usagef("%s: %w", name, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// readMeasurements returns the digests that a machine measures when it boots the version of a
// bundle.
func readMeasurements(name string, trust bundle.Trust) (r attest.Release, err error) {
	file, err := os.Open(name)
	if err != nil {
		return r, fmt.Errorf("cannot read the bundle: %w", err)
	}
	defer file.Close()
	b, err := bundle.Open(file, trust)
	if err != nil {
		return r, err
	}
	if err := b.SkipRoot(); err != nil {
		return r, err
	}
	image, err := b.UKI()
	if err != nil {
		return r, err
	}
	r, err = attest.ReadImage(b.Statement.Version, b.Statement.Root, image)
	if err == nil && r.Loader == (attest.Digest{}) {
		err = errors.New("its boot image does not name the boot loader: the version is older than attestation")
	}
	return r, err
}

// roots checks the fingerprints of --ek and returns the CA certificates of --ek-ca. It returns nil
// without --ek-ca.
func (f *attestFlags) roots() (*x509.CertPool, error) {
	for i, ek := range f.eks {
		var err error
		if f.eks[i], err = pki.ParseFingerprint(ek); err != nil {
			return nil, exit.Usagef("--ek: %w", err)
		}
	}
	if f.makers == "" {
		return nil, nil
	}
	text, err := os.ReadFile(f.makers)
	if err != nil {
		return nil, exit.Usagef("--ek-ca: cannot read: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, exit.Usagef("--ek-ca: %s: has no certificate (PEM)", f.makers)
	}
	return roots, nil
}

// attestTime is the timeout of each call for which the TPM of the machine computes a result.
const attestTime = attest.Deadline

// attest requests an attestation from a machine, and verifies it.
func (f *attestFlags) attest(ctx context.Context, c api.AttestationClient, releases []attest.Release, roots *x509.CertPool) (a attestation, err error) {
	answer, err := c.GetKeys(ctx, &api.GetAttestationKeysRequest{})
	if err != nil {
		return a, err
	}
	keys := attest.Keys{Endorsement: answer.EndorsementKey, Certificate: answer.EndorsementCertificate, Attestation: answer.AttestationKey}
	if a.EndorsementKey, a.Trust, err = f.trustKey(keys, roots); err != nil {
		return a, unexpected(err)
	}
	challenge, content, err := keys.NewChallenge()
	if err != nil {
		return a, unexpected(err)
	}
	nonce := make([]byte, attest.NonceSize)
	rand.Read(nonce)
	var from peer.Peer
	r, err := c.Attest(ctx, &api.AttestRequest{Nonce: nonce, Credential: challenge.Credential, Secret: challenge.Secret}, grpc.Peer(&from))
	if err != nil {
		return a, err
	}
	evidence := attest.Evidence{
		Claims: attest.Claims{Version: r.Version, Root: r.Root, Configuration: r.Configuration, MachineKey: r.MachineKey},
		Quote:  r.Quote, Signature: r.Signature, PCRs: r.Pcrs, Log: r.EventLog, Answer: r.Answer,
	}
	m, err := evidence.Verify(keys, nonce, content, keyOf(from))
	if err != nil {
		return a, unexpected(err)
	}
	a.Result, a.MachineKey, a.Configuration = m.Compare(releases), m.Claims.MachineKey, hex.EncodeToString(m.Claims.Configuration)
	if f.events {
		for _, value := range m.PCRs {
			a.PCRs = append(a.PCRs, hex.EncodeToString(value[:]))
		}
		a.Events = attest.Describe(m.Events)
	}
	return a, nil
}

// trustKey returns the fingerprint of an EK and the reason to trust the EK. It returns an error if
// the EK does not satisfy --ek or --ek-ca.
func (f *attestFlags) trustKey(k attest.Keys, roots *x509.CertPool) (fingerprint, by string, err error) {
	if fingerprint, err = k.EndorsementFingerprint(); err != nil {
		return "", "", err
	}
	var reasons []string
	if len(f.eks) > 0 {
		if !slices.Contains(f.eks, fingerprint) {
			return "", "", fmt.Errorf("endorsement key: it is %s, and --ek names another: the machine has another TPM, or its TPM was cleared", fingerprint)
		}
		reasons = append(reasons, "it is the recorded key")
	}
	if roots != nil {
		if err := k.CheckCertificate(roots); err != nil {
			return "", "", err
		}
		reasons = append(reasons, "a maker in "+f.makers+" certified it")
	}
	if len(reasons) == 0 {
		reasons = []string{"nothing vouches for it: --ek or --ek-ca would"}
	}
	return fingerprint, strings.Join(reasons, ", "), nil
}

// unexpected is the error for a machine that is not the expected machine.
func unexpected(err error) error {
	return &exit.Error{Code: exit.Unreachable, Err: fmt.Errorf("attestation: %w", err), Hint: "do not trust the machine until the cause is known (runbook, task 130)"}
}

// keyOf returns the fingerprint of the machine's key in a connection. It returns "" for a
// connection without a certificate of the machine.
func keyOf(from peer.Peer) string {
	info, ok := from.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return ""
	}
	return pki.Fingerprint(info.State.PeerCertificates[0])
}

// print prints the attestation in the output format. It returns an error if the measurements differ
// from the measurements of all bundles.
func (a attestation) print(ios *iostreams.Streams) error {
	var err error
	if ios.Human() {
		err = iostreams.DrawTable(ios.Out, a.rows)
	} else {
		err = ios.PrintPlain(a)
	}
	if err != nil || len(a.Differences) == 0 {
		return err
	}
	return unexpected(fmt.Errorf("the machine booted something else: %d differences", len(a.Differences)))
}

func (a attestation) rows(w *tabwriter.Writer) {
	version := a.Version
	if version == "" {
		version = "none of the bundles"
	}
	iostreams.Row(w, "BOOTED", format.Clean(version))
	iostreams.Row(w, "SECURE BOOT", a.SecureBoot)
	iostreams.Row(w, "ENDORSEMENT KEY", a.EndorsementKey)
	iostreams.Row(w, "", format.Clean(a.Trust))
	iostreams.Row(w, "MACHINE KEY", format.Clean(a.MachineKey))
	if a.Configuration != "" {
		iostreams.Row(w, "CONFIGURATION", "sha256:"+a.Configuration)
	}
	for _, d := range a.Differences {
		iostreams.Row(w, "DIFFERENCE", format.Clean(d.What))
		iostreams.Row(w, "usual cause", format.Clean(d.Cause))
	}
	for i, value := range a.PCRs {
		iostreams.Row(w, fmt.Sprintf("PCR %d", i), value)
	}
	for _, e := range a.Events {
		iostreams.Row(w, "EVENT", format.Clean(e))
	}
}
