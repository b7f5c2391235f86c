package sysctl

import "testing"

func TestReservedReason(t *testing.T) {
	for name, want := range map[string]string{
		"kernel.kptr_restrict":                              hardening,
		"kernel.modules_disabled":                           hardening,
		"fs.binfmt_misc.register":                           hardening,
		"net.ipv4.ip_forward":                               forwarding,
		"net.bridge.bridge-nf-call-iptables":                forwarding,
		"vm.overcommit_memory":                              kubelet,
		"kernel.panic":                                      panics,
		"kernel.hostname":                                   hostname,
		"net.ipv6.conf.eth0.accept_ra":                      links,
		"net.ipv6.conf.all.accept_ra":                       links,
		"net.ipv4.conf.eth0/100.promote_secondaries":        links,
		"net.ipv4.conf.default.ignore_routes_with_linkdown": links,
		"net.ipv6.conf.eth0.ignore_routes_with_linkdown":    links,
		"net.ipv4.conf.eth0/100.rp_filter":                  allLinks,
		"net.ipv4.conf.all.rp_filter":                       routing,
		"net.ipv4.conf.eth0.accept_redirects":               allLinks,
		"net.ipv4.conf.eth0.accept_source_route":            allLinks,
		"net.ipv4.conf.eth0.forwarding":                     forwarding,
		"net.ipv6.conf.default.forwarding":                  forwarding,
		"net.ipv6.conf.eth0.accept_ra_defrtr":               "",
		"net.ipv6.conf.eth0.use_tempaddr":                   "",
		"net.ipv4.conf.eth0.send_redirects":                 routing,
		"net.ipv4.conf.eth0.secure_redirects":               routing,
		"net.ipv4.conf.eth0/100.arp_ignore":                 "",
		"net.ipv4.accept_ra":                                "",
		"vm.min_free_kbytes":                                "",
		"net.core.somaxconn":                                "",
		"user.max_inotify_instances":                        manyPods,
		"user.max_inotify_watches":                          manyPods,
		"net.nf_conntrack_max":                              "",
	} {
		if got := ReservedReason(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// TestTables checks that the tables contain each parameter once, with a reason.
func TestTables(t *testing.T) {
	seen := map[string]bool{}
	for _, table := range [][]Parameter{System, Pods, Reserved} {
		for _, p := range table {
			if seen[p.Name] || p.Reason == "" {
				t.Errorf("%s: listed twice, or without a reason", p.Name)
			}
			seen[p.Name] = true
		}
	}
}

// TestTooLow checks the minimum values of parameters, also under the second name of a parameter.
// TooLow also returns a reason for a value that is no number.
func TestTooLow(t *testing.T) {
	for _, c := range []struct {
		name, value, reason string
		least               uint64
	}{
		{"fs.file-max", "64", "64 is too low: " + openFiles, 32768},
		{"fs.file-max", "32767", "32767 is too low: " + openFiles, 32768},
		{"fs.file-max", "32768", "", 0},
		{"fs.file-max", "0x8000", "", 0},
		{"fs.file-max", "9223372036854775807", "", 0},
		{"fs.file-max", "many", `"many" is not a single number from 0 to 2^64-1`, 32768},
		{"fs.file-max", "-1", `"-1" is not a single number from 0 to 2^64-1`, 32768},
		{"fs.file-max", "64 99999", `"64 99999" is not a single number from 0 to 2^64-1`, 32768},
		{"fs.file-max", " 64", "64 is too low: " + openFiles, 32768},
		{"vm.nr_hugepages", "0", "", 0},
		{"vm.nr_hugepages_mempolicy", "9 9", `"9 9" is not a single number from 0 to 2^64-1`, 0},
		{"kernel.threads-max", "50", "50 is too low: the system and the pods of one machine have that many threads", 4096},
		{"net.netfilter.nf_conntrack_max", "0", "", 0},
		{"net.nf_conntrack_max", "10", "10 is too low: each connection of the machine and its pods takes an entry", 4096},
		{"user.max_mnt_namespaces", "0", "0 is too low: " + namespaces, 1024},
		{"user.max_user_namespaces", "0", "", 0}, // pods need none by default
		{"vm.swappiness", "0", "", 0},
	} {
		if reason, least := TooLow(c.name, c.value); reason != c.reason || least != c.least {
			t.Errorf("%s = %s: %q, at least %d", c.name, c.value, reason, least)
		}
	}
	seen := map[string]bool{}
	for _, b := range Bounds {
		if seen[b.Name] || b.Reason == "" || Canonical(b.Name) != b.Name || ReservedReason(b.Name) != "" {
			t.Errorf("%s: listed twice, without a reason, not under its canonical name, or reserved", b.Name)
		}
		seen[b.Name] = true
	}
}

// TestNumber checks that Number reads a value as the kernel does, and rejects a value that is no
// number.
func TestNumber(t *testing.T) {
	for value, want := range map[string]uint64{
		"0": 0, "7": 7, "010": 8, "0x1F": 31, "0X1f": 31, " 99999": 99999, "\t9 ": 9,
		"9223372036854775808": 1 << 63, "18446744073709551615": 1<<64 - 1,
	} {
		if got, err := Number(value); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", value, got, err, want)
		}
	}
	for _, value := range []string{"", " ", "-1", "+1", "1 2", "1\t2", "1,2", "1k", "1_000", "0b1", "0o7", "08", "0x", "0x_1", "1.5", "\u00a01", "18446744073709551616"} {
		if got, err := Number(value); err == nil {
			t.Errorf("Number(%q) = %d, want an error", value, got)
		}
	}
}

// TestConflict checks that Conflict returns the other parameter of a configuration that sets the
// same value of the kernel.
func TestConflict(t *testing.T) {
	all := map[string]string{"vm.dirty_bytes": "", "vm.dirty_ratio": "", "vm.dirty_background_ratio": "", "net.nf_conntrack_max": "", "net.netfilter.nf_conntrack_max": ""}
	for name, want := range map[string]string{
		"vm.dirty_bytes": "vm.dirty_ratio", "vm.dirty_ratio": "vm.dirty_bytes", "vm.dirty_background_ratio": "",
		"net.nf_conntrack_max": "net.netfilter.nf_conntrack_max", "net.netfilter.nf_conntrack_max": "net.nf_conntrack_max",
	} {
		if got := Conflict(name, all); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
