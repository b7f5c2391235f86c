package apid

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
)

// TestFormerNames calls each method of version 0.1.0 by its former name, with each role. The
// result, the log lines and the call that reaches machined must be those of the present name.
func TestFormerNames(t *testing.T) {
	b := newTestAPI(t)
	table, clients := newRoleTable(), map[api.Role]*client.Client{api.Role_ROLE_UNSPECIFIED: b.dial("unknown")}
	for _, role := range append(append([]api.Role{}, ladder...), narrow...) {
		issuer := b.operator
		if role == api.Role_ROLE_MACHINE {
			issuer = b.machine
		}
		clients[role] = b.dialWith(mustLeaf(t, issuer, pki.Spec{CN: "alice", O: []string{organization(role)}, Usage: pki.Client, TTL: day}))
	}
	count := 0
	for present := range table {
		former := api.FormerName(present)
		if former == "" {
			continue
		}
		count++
		for role, c := range clients {
			allowed := table.check(present, role) == nil
			calls, refused := len(b.log.lines(t, "call", present)), len(b.log.lines(t, "call refused", present))
			err := callRaw(t.Context(), c, former)
			if want := map[bool]codes.Code{true: codes.OK, false: codes.PermissionDenied}[allowed]; status.Code(err) != want {
				t.Errorf("%s as %s: %v, want %s", former, role, err, want)
			}
			if b.backend.taken(former) != nil {
				t.Errorf("%s as %s reached machined by its former name", former, role)
			}
			md := b.backend.taken(present)
			if (md != nil) != allowed || allowed && md.Get(api.MetadataRole)[0] != (caller{role: role}).roleName() {
				t.Errorf("%s as %s: machined got %v", former, role, md)
			}
			if table.mutates(present) && allowed {
				calls++
			}
			if !allowed {
				refused++
			}
			if len(b.log.lines(t, "call", present)) != calls || len(b.log.lines(t, "call refused", present)) != refused {
				t.Errorf("%s as %s: the log has %v and %v", former, role, b.log.lines(t, "call", present), b.log.lines(t, "call refused", present))
			}
		}
		if len(b.log.lines(t, "call", former))+len(b.log.lines(t, "call refused", former)) > 0 {
			t.Errorf("%s: the log has the former name", former)
		}
	}
	if count != 18 {
		t.Errorf("%d methods have a former name, want 18", count)
	}
	// Names that are similar to former names are unknown, and internal methods have no former name.
	admin := clients[api.Role_ROLE_ADMIN]
	for _, method := range []string{"/orlop.v1alpha1.Cluster/roll", "/orlop.v1alpha1.Cluster/Roll/", "/orlop.v1alpha1.Cluster//Roll", "/Cluster/Roll", "/orlop.v1alpha1.Door/Pair",
		"/orlop.v1alpha1.Cluster/", api.ApidInternal_Pair_FullMethodName} {
		if err := callRaw(t.Context(), admin, method); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", method, err)
		}
		if b.backend.taken(method) != nil {
			t.Errorf("%s reached machined", method)
		}
	}
}
