package volumes

import (
	"context"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/layout"
)

// TestEarlyReset checks a reset before the disks were read for the first time: if DATA is to be
// wiped, WipeParts must return an error, because it cannot wipe the parts of DATA.
func TestEarlyReset(t *testing.T) {
	c := controller(t, &[]Disk{})
	if err := writeRecords(c.deps.Records, []Record{record("e", config.UseEtcd, 1, true)}); err != nil {
		t.Fatal(err)
	}
	if err := c.PrepareReset(); err != nil {
		t.Fatal(err)
	}
	say := func(line string) { t.Error(line) }
	if err := c.WipeParts([]string{layout.State}, say); err != nil {
		t.Errorf("a reset of STATE alone wipes parts of DATA: %v", err)
	}
	if err := c.WipeParts([]string{layout.Data, layout.State}, say); err == nil || !strings.Contains(err.Error(), "volume e: etcd cannot be wiped") {
		t.Errorf("a reset of DATA: %v", err)
	}
}

// TestUnknownRecords checks that an operator can wipe nothing while the records are not available.
func TestUnknownRecords(t *testing.T) {
	for want, change := range map[string]func(*Deps){
		"the system runs from memory":            func(d *Deps) { d.InMemory = true },
		"the volumes of the machine are unknown": func(d *Deps) { d.StorageProblem = func() string { return "STATE is damaged" } },
	} {
		c := controller(t, &[]Disk{})
		change(&c.deps)
		for _, wipe := range []func(context.Context, string) (string, error){c.WipeDisk, c.WipeVolume} {
			if _, err := wipe(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("the wipe returns %v, want %q", err, want)
			}
		}
	}
}
