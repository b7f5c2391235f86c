package main

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/machined/lldp"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

func TestNICs(t *testing.T) {
	s := network.State{Links: []network.LinkState{
		{Name: "lo", Addresses: []network.AddressState{{Prefix: netip.MustParsePrefix("127.0.0.1/8")}}},
		{Name: "eth0", MAC: "52:54:00:00:00:01", Driver: "virtio_net", Carrier: true, Addresses: []network.AddressState{
			{Prefix: netip.MustParsePrefix("10.77.0.12/24")}, {Prefix: netip.MustParsePrefix("fe80::1/64")}, {Prefix: netip.MustParsePrefix("fd00::1/64")}}},
		{Name: "bond0", Kind: "bond"},
		{Name: "eth1", MAC: "52:54:00:00:00:02"},
	}}
	got := nics(s, []lldp.Neighbor{{Link: "eth0", SystemName: "leaf1", Port: "swp1"}, {Link: "eth9"}}, func(link string) int { return map[string]int{"eth0": 10000}[link] })
	want := []inventory.NIC{
		{Name: "eth0", MAC: "52:54:00:00:00:01", Driver: "virtio_net", Carrier: true, SpeedMbps: 10000,
			Addresses: []netip.Addr{netip.MustParseAddr("10.77.0.12"), netip.MustParseAddr("fd00::1")}, Neighbors: []inventory.Neighbor{{System: "leaf1", Port: "swp1"}}},
		{Name: "eth1", MAC: "52:54:00:00:00:02"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestAcceptsInventories(t *testing.T) {
	c := func(role config.Role, objects, inventories bool) *config.Config {
		c := config.New("a", role)
		c.Cluster = &config.Cluster{}
		c.Cluster.Spec.Kubernetes.MachineObjects = config.MachineObjects{Enabled: objects, Inventory: inventories}
		return c
	}
	for _, test := range []struct {
		c    *config.Config
		want bool
	}{
		{nil, false},
		{c(config.RoleControlPlane, true, true), true},
		{c(config.RoleControlPlane, false, true), false},
		{c(config.RoleControlPlane, true, false), false},
		{c(config.RoleWorker, true, true), false},
	} {
		if got := acceptsInventories(test.c); got != test.want {
			t.Errorf("%+v: %t", test.c, got)
		}
	}
}

func TestWriteHosts(t *testing.T) {
	dir := t.TempDir()
	defer unix.Umask(unix.Umask(0o077))
	if err := writeForControllers(filepath.Join(dir, "missing"), nodespec.HostsFile, []byte("[]")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without controllers: %v", err)
	}
	for _, content := range []string{"[]", "[1]"} {
		if err := writeForControllers(dir, nodespec.HostsFile, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "hosts.json")); err != nil || string(got) != content {
			t.Errorf("%s, %v", got, err)
		}
		if info, err := os.Stat(filepath.Join(dir, "hosts.json")); err != nil || info.Mode() != 0o444 {
			t.Errorf("%v, %v: another user cannot read it", info, err)
		}
	}
}
