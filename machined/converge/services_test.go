package converge

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/config"
)

// TestUnusedResolvers checks that resolvers that pods do not use are reported once per change, also
// while the credentials cannot be written, and not again after the loss of the address.
func TestUnusedResolvers(t *testing.T) {
	c, problems := config.Parse("reference.yaml", []byte(config.Reference))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	addressed := network.State{Links: []network.LinkState{{Managed: true, Up: true, Addresses: []network.AddressState{{Prefix: netip.MustParsePrefix("10.0.0.11/24")}}}}}
	other := addressed
	addressed.Servers = []netip.Addr{netip.MustParseAddr("127.0.0.53"), netip.MustParseAddr("10.0.0.2")}
	other.Servers = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	r := testReconciler(t)
	var events []string
	r.deps.Event = func(_, kind, message string) {
		if strings.Contains(message, "resolver") {
			text, _, _ := strings.Cut(message, ":")
			events = append(events, kind+" "+text)
		}
	}
	all := r.domains()
	for i, d := range all {
		all[i].want, all[i].diff = nil, (&pending{}).diff
		if d.name == "credentials" {
			all[i].diff = (&pending{left: []string{"impossible"}}).diff
		}
	}
	for _, step := range []struct {
		c     *config.Config
		state network.State
	}{{nil, addressed}, {c, network.State{}}, {c, addressed}, {c, addressed}, {c, network.State{}}, {c, addressed}, {c, other}} {
		if err := r.lead(t.Context(), all, step.c, step.state); err == nil {
			t.Error("the credentials were written")
		}
	}
	if got := strings.Join(events, ", "); got != "failure resolver 127.0.0.53, failure resolver 127.0.0.1" {
		t.Errorf("events: %s", got)
	}
}

// TestEmptyPluginsOnce checks that emptyPluginsOnce removes the plugins of an external pod network
// that an earlier boot has left. While the configuration file of this boot exists, the plugins
// stay.
func TestEmptyPluginsOnce(t *testing.T) {
	dir := t.TempDir()
	configuration, plugins := filepath.Join(dir, "config.toml"), filepath.Join(dir, "cni/bin")
	plugin := filepath.Join(plugins, "other")
	is := func(when string, there bool) {
		t.Helper()
		if err := emptyPluginsOnce(configuration, plugins); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if _, err := os.Stat(plugin); (err == nil) != there {
			t.Errorf("%s: the plugin: %v; want a plugin: %t", when, err, there)
		}
	}
	write := func(file string) {
		t.Helper()
		if err := os.WriteFile(file, nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	is("at the first boot", false)
	write(plugin)
	is("at the next boot", false)
	write(plugin)
	write(configuration)
	is("while the machine runs", true)
}
