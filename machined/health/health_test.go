package health

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/wear"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/superblock"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// TestHealthWaitsForTheConfiguration checks that a machine is unhealthy after a change of its
// configuration, until the change is active.
func TestHealthWaitsForTheConfiguration(t *testing.T) {
	health := &api.HealthResponse{Healthy: true, Checks: []*api.HealthCheck{{Name: "configuration", Ok: true, Detail: "story"}, {Name: "etcd", Ok: true}}}
	ConfigurationNotActive(health, "not active yet: orchestrator-api")
	if c := health.Checks[0]; health.Healthy || c.Ok || c.Detail != "not active yet: orchestrator-api" || !health.Checks[1].Ok {
		t.Errorf("%v", health)
	}
}

// TestHealthNamesProblems checks that the check of a component fails if the component is ready but
// has a problem, and that the machine is then unhealthy.
func TestHealthNamesProblems(t *testing.T) {
	services := []supervise.Status{{Name: "orchestrator-api", State: supervise.Running, Components: []supervise.Component{
		{Name: "etcd", Ready: true, Detail: "serving"}, {Name: "extensions", Ready: true, Detail: "problem: APIService v1.example.org: it cannot be reached"},
	}}}
	health := Of(Machine{Config: &config.Config{Cluster: &config.Cluster{}}, Services: services})
	for _, c := range health.Checks {
		switch want := c.Name != "extensions"; c.Name {
		case "etcd", "extensions":
			if c.Ok != want || c.Detail == "" {
				t.Errorf("%v", c)
			}
		}
	}
	if health.Healthy {
		t.Error("the machine is healthy although a component has a problem")
	}
}

// TestAdd checks that a failed check makes a machine unhealthy, and that Add adds no check if
// Firewall or Unanswered finds no problem.
func TestAdd(t *testing.T) {
	health := &api.HealthResponse{Healthy: true}
	if Add(health, Firewall("", time.Time{})); !health.Healthy || len(health.Checks) > 0 {
		t.Errorf("with active rules: %v", health)
	}
	if Add(health, Unanswered("STATE", "the epoch", nil, time.Time{})); !health.Healthy || len(health.Checks) > 0 {
		t.Errorf("with a STATE that answers: %v", health)
	}
	if Add(health, Unanswered("STATE", "which epoch is the highest", errors.New("no result within 5s"), time.Time{})); health.Healthy ||
		health.Checks[0].Detail != "STATE does not answer (no result within 5s), so it is unknown which epoch is the highest; reboot the machine, and replace the disk if this happens again" {
		t.Errorf("with a STATE that does not answer: %v", health)
	}
	health = &api.HealthResponse{Healthy: true}
	if Add(health, Firewall("no rules", time.Time{})); health.Healthy || len(health.Checks) != 1 || health.Checks[0].Detail != "no rules" {
		t.Errorf("without rules: %v", health)
	}
}

// TestWear checks that only a disk with a problem makes the machine unhealthy. A worn disk is
// mentioned, and a disk with unknown wear is not.
func TestWear(t *testing.T) {
	worn := wear.Disk{Path: "/dev/nvme0n1", Remark: "worn"}
	failing := wear.Disk{Path: "/dev/sda", Serial: "S", Problem: "failing"}
	for _, test := range []struct {
		list    []wear.Disk
		healthy bool
		detail  string
	}{
		{[]wear.Disk{{Path: "/dev/sdb", Unknown: "no answer"}}, true, ""},
		{[]wear.Disk{worn}, true, "/dev/nvme0n1: worn"},
		{[]wear.Disk{worn, failing}, false, "/dev/nvme0n1: worn; /dev/sda (serial S): failing"},
	} {
		h := &api.HealthResponse{Healthy: true}
		Add(h, Wear(wear.Warnings(test.list)))
		if h.Healthy != test.healthy || len(h.Checks) > 0 != (test.detail != "") || len(h.Checks) > 0 && (h.Checks[0].Ok != test.healthy || h.Checks[0].Detail != test.detail) {
			t.Errorf("%v: %v", test.list, h)
		}
	}
}

// TestStorage checks that a file system with an error makes the machine unhealthy. A repaired file
// system does not, but its former errors stay visible.
func TestStorage(t *testing.T) {
	broken := disk.FilesystemErrors{Label: "DATA", Device: "/dev/vda5", Faults: superblock.Errors{Marked: true, Count: 1, First: superblock.Error{Function: "ext4_lookup"}}}
	repaired := broken
	repaired.Checked = true
	for _, test := range []struct {
		name    string
		list    []disk.FilesystemErrors
		healthy bool
		detail  string // a part of the detail; empty: there is no check
	}{
		{"no errors", nil, true, ""},
		{"broken", []disk.FilesystemErrors{broken}, false, "DATA (/dev/vda5): the file system has 1 error"},
		{"repaired", []disk.FilesystemErrors{repaired}, true, "had 1 error"},
	} {
		h := &api.HealthResponse{Healthy: true}
		Add(h, Storage(test.list))
		if h.Healthy != test.healthy || len(h.Checks) > 0 != (test.detail != "") {
			t.Errorf("%s: %v", test.name, h)
		} else if test.detail != "" && (h.Checks[0].Ok != test.healthy || !strings.Contains(h.Checks[0].Detail, test.detail)) {
			t.Errorf("%s: %v", test.name, h)
		}
	}
}

// TestEncryption checks that a machine warns if its partitions are not encrypted as configured, and
// that it is unhealthy only if one of them is encrypted alone, or none against the image.
func TestEncryption(t *testing.T) {
	of := func(unlock ...config.Unlock) *config.Config {
		c := &config.Config{}
		if len(unlock) > 0 {
			c.Machine.Spec.Disk.Encryption = &config.DiskEncryption{Unlock: unlock, Recovery: config.DiskRecovery{Recipients: []config.Recipient{"a", "b"}}}
		}
		return c
	}
	with := func(state, data bool, mode string, recipients ...string) Protection {
		return Protection{State: state, Data: data, SecureBoot: mode, Recipients: [][]string{recipients, recipients}}
	}
	both := with(true, true, "enabled", "b", "a")
	plain := func(p Protection, demanded bool) Protection {
		p.Plain, p.Demanded = true, demanded
		return p
	}
	demanded := both
	demanded.Demanded = true
	for _, test := range []struct {
		name    string
		config  *config.Config
		have    Protection
		detail  string // a part of it; empty: no check
		healthy bool
	}{
		{"no configuration", nil, Protection{}, "", true},
		{"no setting", of(), Protection{}, "", true},
		{"encrypted", of(config.UnlockTPM), both, "", true},
		{"encrypted without a configuration", nil, both, "", true},
		{"not encrypted yet", of(config.UnlockTPM), Protection{}, "they were formatted before", true},
		{"by choice", of(config.UnlockNone), Protection{}, "not encrypted, as configured", true},
		{"against the choice", of(config.UnlockNone), both, "although Machine.spec.disk.encryption says none", true},
		{"other recipients", of(config.UnlockTPM), with(true, true, "enabled", "a"), "other recipients", true},
		{"Secure Boot is off", of(config.UnlockTPM), with(true, true, "disabled", "a", "b"), "the mode of Secure Boot is disabled", true},
		{"Secure Boot is off without a configuration", nil, with(true, true, "setup", "a"), "the mode of Secure Boot is setup", true},
		{"DATA is plain", of(config.UnlockTPM), plain(with(true, false, "enabled", "a", "b"), false), "the disk was changed outside this machine", false},
		{"DATA is plain without a setting", of(), plain(with(true, false, "enabled", "a"), false), "the disk was changed outside this machine", false},
		{"STATE is plain", nil, plain(with(false, true, "enabled", "a"), false), "the disk was changed outside this machine", false},
		{"the format of DATA was interrupted", of(), with(true, false, "enabled", "a"), "was interrupted or has failed", false},
		{"plain, as before", of(), plain(Protection{}, false), "", true},
		{"encrypted as the image demands", of(), demanded, "", true},
		{"both were replaced", of(), plain(Protection{}, true), "although the image of this machine demands it", false},
		{"both were replaced, with a configuration", of(config.UnlockNone), plain(Protection{}, true), "although the image of this machine demands it", false},
		{"both were replaced, without one", nil, plain(Protection{}, true), "although the image of this machine demands it", false},
		{"a system in memory", nil, Protection{Demanded: true}, "", true},
	} {
		h := &api.HealthResponse{Healthy: true}
		Add(h, Encryption(test.config, test.have))
		if h.Healthy != test.healthy || len(h.Checks) > 0 != (test.detail != "") || test.detail != "" && !strings.Contains(h.Checks[0].Detail, test.detail) {
			t.Errorf("%s: %v", test.name, h)
		}
	}
}
