package health

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// TestFailedCheck checks which check of a version on trial fails first. Without a configuration,
// only the management API has to answer; with a Cluster document, the services of Kubernetes have
// to run.
func TestFailedCheck(t *testing.T) {
	running := func(name string, components ...supervise.Component) supervise.Status {
		return supervise.Status{Name: name, State: supervise.Running, Components: components}
	}
	apid := running(nodespec.ServiceApid)
	node := &config.Config{Cluster: &config.Cluster{}}
	node.Machine.Spec.Role = config.RoleControlPlane
	var all []supervise.Status
	var expected []string
	for _, s := range nodeplan.Kubernetes(true) {
		all, expected = append(all, running(s.Name)), append(expected, s.Name)
	}
	unready := append([]supervise.Status{apid, running(nodespec.ServiceNode, supervise.Component{Name: "node", Detail: "KubeletNotReady"})}, all...)
	with := func(service, component, detail string) []supervise.Status {
		return append([]supervise.Status{apid, running(service, supervise.Component{Name: component, Ready: true, Detail: detail})}, all...)
	}
	for _, c := range []struct {
		what     string
		now      *config.Config
		services []supervise.Status
		stored   bool
		storage  string
		want     string
	}{
		{"nothing runs", nil, nil, false, "", "management API: not answering yet"},
		{"the API answers, and there is no configuration", nil, []supervise.Status{apid}, false, "", ""},
		{"the API answers, but the configuration cannot be read", nil, []supervise.Status{apid}, true, "", "configuration: the stored one is unusable"},
		{"a node whose services are missing", node, []supervise.Status{apid}, true, "", expected[0] + ": not started yet"},
		{"a node that is not ready", node, unready, true, "", "node: KubeletNotReady"},
		{"STATE cannot be mounted", nil, []supervise.Status{apid}, false, "e2fsck: signal: killed", "storage: e2fsck: signal: killed"},
		{"a webhook without a server, which is no fault of the version", node, with(nodespec.ServiceAPI, "extensions", "problem: ValidatingWebhookConfiguration policy"), true, "", ""},
		{"a controller manager that ends", node, with(nodespec.ServiceControllers, "kube-controller-manager", "problem: ended"), true, "", "kube-controller-manager: problem: ended"},
		{"a node", node, append([]supervise.Status{apid}, all...), true, "", ""},
	} {
		trial := Trial{Machine: Machine{Config: c.now, Expected: expected, Services: c.services}, Stored: c.stored, StorageProblem: c.storage}
		if got := FailedCheck(trial); got != c.want {
			t.Errorf("%s: the failed check is %q, want %q", c.what, got, c.want)
		}
	}
}

// TestTrialWatcher checks that a check of the trial fails while STATE does not answer, and that
// Wait returns after a change of the machine's state.
func TestTrialWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer, state := make(chan bool), cell.New(Trial{Machine: Machine{Services: []supervise.Status{{Name: nodespec.ServiceApid, State: supervise.Running}}}})
		w := NewTrialWatcher(TrialDeps{
			Read:      func() Trial { now, _ := state.Get(); return now },
			Changes:   []cell.View[struct{}]{state.View().Changes()},
			HasStored: func() bool { return <-answer },
		})
		if c, failed := w.Failed(); c != nil || failed != "storage: STATE does not answer, so it is unknown whether it has a configuration: unknown: no result within 5s" {
			t.Errorf("STATE hangs: %q", failed)
		}
		answer <- false
		synctest.Wait()
		go func() { answer <- true }()
		if _, failed := w.Failed(); failed != "configuration: the stored one is unusable" {
			t.Errorf("STATE has a configuration: %q", failed)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := w.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a change: %v", err)
		}
		state.Update(func(now Trial) Trial { now.Firewall, now.Extensions = "no rules", "no module"; return now })
		if err := w.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		go func() { answer <- false }()
		if _, failed := w.Failed(); failed != "no rules" {
			t.Errorf("without rules: %q", failed)
		}
	})
}
