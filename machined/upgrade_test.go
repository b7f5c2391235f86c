package main

import (
	"testing"

	"github.com/orlop-os/orlop/machined/activeconfig"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// TestFailedCheck checks that the checks of a version on trial depend on the configuration.
func TestFailedCheck(t *testing.T) {
	running := func(name string, components ...supervise.Component) supervise.Status {
		return supervise.Status{Name: name, State: supervise.Running, Components: components}
	}
	door := running(nodeplan.ServiceApid)
	node := activeconfig.Active{Config: &config.Config{Cluster: &config.Cluster{}}}
	node.Config.Machine.Spec.Role = config.RoleControlPlane
	var all []supervise.Status
	for _, name := range expectedServices(node.Config) {
		all = append(all, running(name))
	}
	unready := append([]supervise.Status{door, running(nodeplan.ServiceNode, supervise.Component{Name: "node", Detail: "KubeletNotReady"})}, all...)
	with := func(service, component, detail string) []supervise.Status {
		return append([]supervise.Status{door, running(service, supervise.Component{Name: component, Ready: true, Detail: detail})}, all...)
	}
	for _, c := range []struct {
		what     string
		now      activeconfig.Active
		services []supervise.Status
		stored   bool
		storage  string
		want     string
	}{
		{"nothing runs", activeconfig.Active{}, nil, false, "", "management API: not answering yet"},
		{"the API answers, and nothing else was asked for", activeconfig.Active{}, []supervise.Status{door}, false, "", ""},
		{"the API answers, but the configuration cannot be read", activeconfig.Active{}, []supervise.Status{door}, true, "", "configuration: the stored one is unusable"},
		{"a node whose services are missing", node, []supervise.Status{door}, true, "", expectedServices(node.Config)[0] + ": not started yet"},
		{"a node that is not Ready", node, unready, true, "", "node: KubeletNotReady"},
		{"no STATE, where there was one", activeconfig.Active{}, []supervise.Status{door}, false, "e2fsck: signal: killed", "storage: e2fsck: signal: killed"},
		{"a dead webhook, which no version is to blame for", node, with(nodeplan.ServiceKubeAPI, "extensions", "problem: ValidatingWebhookConfiguration policy"), true, "", ""},
		{"a controller manager that ends", node, with(nodeplan.ServiceControllers, "kube-controller-manager", "problem: ended"), true, "", "kube-controller-manager: problem: ended"},
		{"a node", node, append([]supervise.Status{door}, all...), true, "", ""},
	} {
		if got := failedCheck(c.now, membership.State{}, c.services, c.stored, c.storage); got != c.want {
			t.Errorf("%s: waits for %q, want %q", c.what, got, c.want)
		}
	}
}
