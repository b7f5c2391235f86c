package main

import (
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
)

// TestServicesTable checks the state that the table shows for a component: ready, not ready, or
// problem for a component that is ready and has a problem.
func TestServicesTable(t *testing.T) {
	var out strings.Builder
	if err := iostreams.DrawTable(&out, func(w *tabwriter.Writer) {
		servicesTable(w, []*api.ServiceStatus{{Name: "orchestrator-api", State: "running", Components: []*api.Component{
			{Name: "etcd", Ready: true, Detail: "serving"},
			{Name: "extensions", Ready: true, Detail: "problem: APIService v1.example.org: it cannot be reached"},
			{Name: "bootstrap", Detail: "waiting"},
		}}})
	}); err != nil {
		t.Fatal(err)
	}
	for name, state := range map[string]string{"etcd": "ready", "extensions": "problem", "bootstrap": "not ready"} {
		_, line, _ := strings.Cut(out.String(), "└ "+name)
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, state+" ") {
			t.Errorf("%s is shown as %.20q, want %s", name, line, state)
		}
	}
}
