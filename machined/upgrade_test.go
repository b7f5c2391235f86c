package main

import (
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// TestFailedCheck checks that the checks of a version on trial depend on the configuration.
func TestFailedCheck(t *testing.T) {
	running := func(name string, components ...supervise.Component) supervise.Status {
		return supervise.Status{Name: name, State: supervise.Running, Components: components}
	}
	door := running(nodeplan.ServiceApid)
	node := applied{config: &config.Config{Cluster: &config.Cluster{}}}
	node.config.Machine.Spec.Role = config.RoleControlPlane
	var all []supervise.Status
	for _, name := range expectedServices(node.config) {
		all = append(all, running(name))
	}
	unready := append([]supervise.Status{door, running(nodeplan.ServiceNode, supervise.Component{Name: "node", Detail: "KubeletNotReady"})}, all...)
	with := func(service, component, detail string) []supervise.Status {
		return append([]supervise.Status{door, running(service, supervise.Component{Name: component, Ready: true, Detail: detail})}, all...)
	}
	for _, c := range []struct {
		what     string
		now      applied
		services []supervise.Status
		stored   bool
		storage  string
		want     string
	}{
		{"nothing runs", applied{}, nil, false, "", "management API: not answering yet"},
		{"the API answers, and nothing else was asked for", applied{}, []supervise.Status{door}, false, "", ""},
		{"the API answers, but the configuration cannot be read", applied{}, []supervise.Status{door}, true, "", "configuration: the stored one is unusable"},
		{"a node whose services are missing", node, []supervise.Status{door}, true, "", expectedServices(node.config)[0] + ": not started yet"},
		{"a node that is not Ready", node, unready, true, "", "node: KubeletNotReady"},
		{"no STATE, where there was one", applied{}, []supervise.Status{door}, false, "e2fsck: signal: killed", "storage: e2fsck: signal: killed"},
		{"a dead webhook, which no version is to blame for", node, with(nodeplan.ServiceKubeAPI, "extensions", "problem: ValidatingWebhookConfiguration policy"), true, "", ""},
		{"a controller manager that ends", node, with(nodeplan.ServiceControllers, "kube-controller-manager", "problem: ended"), true, "", "kube-controller-manager: problem: ended"},
		{"a node", node, append([]supervise.Status{door}, all...), true, "", ""},
	} {
		if got := failedCheck(c.now, membership.State{}, c.services, c.stored, c.storage); got != c.want {
			t.Errorf("%s: waits for %q, want %q", c.what, got, c.want)
		}
	}
}

// TestEntriesUnread checks that a version on trial stays on trial without a readable ESP, by the
// loader's counter or by the record; no other version is.
func TestEntriesUnread(t *testing.T) {
	trial := slot.Entry{Version: "2.0.0", Trial: true, Left: 2, Done: 1}
	for _, c := range []struct {
		what    string
		running string
		record  slot.Record
		counted slot.Entry
		known   bool
		want    slot.Phase
	}{
		{"the loader counts, and the record is written", "2.0.0", slot.Record{From: "1.0.0", To: "2.0.0", Phase: slot.Written}, trial, true, slot.Trial},
		{"the loader counts, and the record is lost", "2.0.0", slot.Record{}, trial, true, slot.Trial},
		{"firmware that keeps no variables", "2.0.0", slot.Record{From: "1.0.0", To: "2.0.0", Phase: slot.Written}, slot.Entry{}, false, slot.Trial},
		{"the version before", "1.0.0", slot.Record{From: "1.0.0", To: "2.0.0", Phase: slot.Trial}, slot.Entry{}, false, ""},
		{"nothing was upgraded", "1.0.0", slot.Record{}, slot.Entry{}, false, ""},
		{"another one's variable", "1.0.0", slot.Record{}, trial, true, ""},
	} {
		entries, ok := entriesUnread(c.running, c.record, c.counted, c.known)
		if ok != (c.want != "") {
			t.Errorf("%s: %v", c.what, ok)
		}
		if !ok {
			continue
		}
		r, actions, err := slot.Step(c.running, c.record, slot.Booted{Entries: entries})
		if err != nil || r.Phase != c.want || len(actions) != 1 || actions[0] != (slot.Watch{}) {
			t.Errorf("%s: %+v, %v, %v", c.what, r, actions, err)
		}
	}
}

// TestReleaseCheck checks that an old version warns, and is healthy.
func TestReleaseCheck(t *testing.T) {
	now := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name    string
		r       buildinfo.Release
		floor   int
		warning string // a part of it; empty: none
	}{
		{"says nothing", buildinfo.Release{Version: "1"}, 0, ""},
		{"mended", buildinfo.Release{Version: "1", Expires: now.Unix() + 1}, 0, ""},
		{"no longer", buildinfo.Release{Version: "1", Expires: now.Unix()}, 0, "version 1 is not maintained any more since 2026-06-01"},
		{"of this epoch", buildinfo.Release{Version: "1", Epoch: 2}, 2, ""},
		{"of an epoch before", buildinfo.Release{Version: "1", Epoch: 1}, 2, "version 1 has epoch 1, and one with epoch 2 was committed"},
	} {
		health := &api.HealthResponse{Healthy: true}
		releaseCheck(health, c.r, c.floor, now)
		if !health.Healthy || (len(health.Checks) == 0) != (c.warning == "") || c.warning != "" && !strings.Contains(health.Checks[0].Detail, c.warning) {
			t.Errorf("%s: %v", c.name, health)
		}
	}
}
