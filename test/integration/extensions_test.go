package integration

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/registry/remote"
)

// extensionsVerb starts a registry with extensions in the closed network. It writes the patch that
// makes a machine use the registry, and sets $EXTENSION_1, $EXTENSION_2 and so on to the references
// of the extensions.
func (s *story) extensionsVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, -1, "extensions PATCH NAME…")
	const repository = "site/extensions"
	var digests []string
	handler := registryWith(ts, repository+":1", func(ctx context.Context, to *remote.Repository) {
		for _, name := range args[1:] {
			base := filepath.Join(ts.Getenv("VERSIONS"), "extensions", name)
			reference, err := os.ReadFile(base + ".digest")
			ts.Check(err)
			_, digest, _ := strings.Cut(strings.TrimSpace(string(reference)), "@")
			store, err := oci.NewFromTar(ctx, base+".oci.tar")
			ts.Check(err)
			root, err := store.Resolve(ctx, digest)
			ts.Check(err)
			ts.Check(oras.CopyGraph(ctx, store, to, root, oras.DefaultCopyGraphOptions))
			digests = append(digests, digest)
		}
	})
	host, err := s.network.NewHost("registry", netip.Addr{})
	ts.Check(err)
	ca, err := serveTLS(host, handler)
	ts.Check(err)
	writeRegistries(ts, args[0], map[string]any{"address": host.Addr().String(), "ca": string(ca)})
	for i, digest := range digests {
		ts.Setenv("EXTENSION_"+strconv.Itoa(i+1), host.Addr().String()+"/"+repository+"@"+digest)
	}
	s.note("the registry %s holds %s", host.Addr(), strings.Join(args[1:], ", "))
}
