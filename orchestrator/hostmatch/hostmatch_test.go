package hostmatch

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestAnswer checks that an expression can read each field of an inventory, as machined sends it,
// and checks the problems of wrong expressions.
func TestAnswer(t *testing.T) {
	host, err := json.Marshal(inventory.Host{
		Serial: "SN-1", UUID: "4c4c", Vendor: "Acme", Product: "X1", Release: "1.2.0", CPUModel: "EPYC", CPUs: 16, MemoryMiB: 64 << 10,
		Disks: []inventory.Disk{{Name: "sda", SizeMiB: 2 << 20, Model: "WD", Serial: "D-1", Rotational: true}},
		NICs: []inventory.NIC{{Name: "eth0", MAC: "52:54:00:00:00:01", Driver: "ice", SpeedMbps: 25000, Carrier: true,
			Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Neighbors: []inventory.Neighbor{{System: "rack7-tor", Port: "12"}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		expression string
		want       bool
		problem    string // a part of the problem; empty if there is none
	}{
		{`host.serial == "SN-1" && host.uuid == "4c4c" && host.vendor == "Acme" && host.product == "X1" && host.release == "1.2.0" && host.cpuModel == "EPYC"`, true, ""},
		{"host.cpus == 16 && host.memory == 64 * GiB", true, ""},
		{`host.disks.exists(d, d.name == "sda" && d.size == 2 * TiB && d.model == "WD" && d.serial == "D-1" && d.rotational)`, true, ""},
		{`host.nics.exists(n, n.name == "eth0" && n.mac.startsWith("52:54:") && n.driver == "ice" && n.speedMbps >= 25000 && n.carrier)`, true, ""},
		{`host.nics.exists(n, n.neighbors.exists(s, s.system == "rack7-tor" && s.port == "12"))`, true, ""},
		{"host.cpus > 16", false, ""},
		{"host.cpus", false, "is neither true nor false"},
		{"host.labels.rack == \"7\"", false, "is not an expression about a host"},
		{"host.disks[3].size > 1", false, "cannot be evaluated: index out of bounds"},
		{"host.disks[0].power > 1", false, "cannot be evaluated: no such key"},
		{`host.nics.all(a, "aaaaaaaaaaaaaaaaaaaaaaaa".matches("(a*)*b") || ` + strings.Repeat("[1,2,3,4,5,6,7,8,9,10].all(x, ", 5) + "true" + strings.Repeat(")", 5) + ")", false, "cost limit"},
	} {
		in, err := json.Marshal(nodespec.HostMatchRequest{Expression: c.expression, Inventory: host})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		var got nodespec.HostMatchResult
		if err := Answer(bytes.NewReader(in), &out); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if got.Matches != c.want || (got.Problem == "") != (c.problem == "") || !strings.Contains(got.Problem, c.problem) {
			t.Errorf("%s: %+v, want %v %q", c.expression, got, c.want, c.problem)
		}
	}
	for _, bad := range []string{"no", `{"expression":"true","inventory":[]}`} {
		var out bytes.Buffer
		if err := Answer(strings.NewReader(bad), &out); err == nil && !strings.Contains(out.String(), "cannot be parsed") {
			t.Errorf("request %s: %s, want an error", bad, out.String())
		}
	}
}
