package integration

import (
	"net/netip"
	"os"

	"github.com/rogpeppe/go-internal/testscript"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orchestrator/kms/transittest"
)

// transitVerb starts a key manager for the Secrets of a cluster, or changes the state of the key
// manager.
func (s *story) transitVerb(ts *testscript.TestScript, neg bool, args []string) {
	const usage = "transit start PATCH | rotate | seal | unseal"
	need(ts, neg, args, 1, 2, usage)
	switch {
	case args[0] == "start" && len(args) == 2:
		s.startTransit(ts, args[1])
	case s.transit == nil || len(args) != 1:
		ts.Fatalf("usage: %s; begin with start", usage)
	case args[0] == "rotate":
		s.transit.Rotate()
	case args[0] == "seal", args[0] == "unseal":
		s.transit.Seal(args[0] == "seal")
	default:
		ts.Fatalf("usage: %s", usage)
	}
}

// startTransit starts the key manager, and writes the patch that makes the API server use it.
func (s *story) startTransit(ts *testscript.TestScript, file string) {
	s.transit = transittest.New("story", "the-secret-ID-of-the-story")
	host, err := s.network.NewHost("transit", netip.Addr{})
	ts.Check(err)
	ca, err := serveTLS(host, s.transit)
	ts.Check(err)
	patch, err := yaml.Marshal(map[string]any{"kind": "Cluster", "spec": map[string]any{"kubernetes": map[string]any{"apiServer": map[string]any{"kms": map[string]any{
		"transit": map[string]any{
			"endpoint": "https://" + host.Addr().String() + ":443", "key": "orlop", "ca": string(ca),
			"appRole": map[string]any{"roleID": s.transit.RoleID, "secretID": s.transit.SecretID},
		},
	}}}}})
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(file), patch, 0o600))
	s.note("the key manager is at %s", host.Addr())
}
