package main

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/install"
	"github.com/orlop-os/orlop/machined/seed"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/layout"
	"github.com/orlop-os/orlop/pkg/pki"
)

// TestInstallDisk: nothing that choosing and judging a disk needs is lost on the way, and media are told.
func TestInstallDisk(t *testing.T) {
	root := uuid.New()
	d := disk.Disk{
		Path: "/dev/sda", Size: 1 << 40, SectorSize: 512, Model: "m", Serial: "s", WWID: "w", Bus: "b", Transport: "t", ReadOnly: true, Table: "gpt",
		Partitions: []disk.Partition{{UUID: root, Entry: disk.Entry{Number: 1, Label: layout.ESP, Type: layout.TypeESP, Size: 5}, Content: disk.Content{Kind: "vfat", Label: "ESP"}}},
	}
	want := install.Disk{
		Path: "/dev/sda", Size: 1 << 40, SectorSize: 512, Model: "m", Serial: "s", WWID: "w", Bus: "b", Transport: "t", ReadOnly: true, Table: "gpt",
		Partitions: []install.Partition{{Number: 1, Label: layout.ESP, Type: layout.TypeESP, UUID: root, Size: 5, Content: "vfat ESP"}},
	}
	if got := installDisk(d, []seed.Device{{Path: "/dev/sdb1", Disk: "/dev/sdb", Label: "cidata"}}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if got := installDisk(d, []seed.Device{{Path: "/dev/sda1", Disk: "/dev/sda", Label: "cidata"}}).Medium; got != "it is the medium cidata" {
		t.Errorf("a disk that is the configuration's medium: %q", got)
	}
	d.Boot = true
	if installDisk(d, nil).Medium == "" {
		t.Error("the disk that the system runs from may be installed to")
	}
}

// TestKeepsOperator: who may own a machine through a medium.
func TestKeepsOperator(t *testing.T) {
	authority := func() []byte {
		ca, err := pki.NewCA("operator", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return ca.CertPEM()
	}
	mine, others := authority(), authority()
	trusting := func(cas ...[]byte) *config.Config {
		var list strings.Builder
		for _, ca := range cas {
			fmt.Fprintf(&list, "    - |\n      %s\n", strings.ReplaceAll(strings.TrimSpace(string(ca)), "\n", "\n      "))
		}
		text := "apiVersion: orlop.dev/v1alpha1\nkind: Machine\nmetadata: {name: a}\nspec:\n  role: controlplane\n"
		if len(cas) > 0 {
			text += "  trust:\n    operatorCAs:\n" + list.String()
		}
		c, problems := config.Parse("test", []byte(text))
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		return c
	}
	for _, c := range []struct {
		name  string
		image []byte
		next  *config.Config
		ok    bool
	}{
		{"says nothing", mine, trusting(), true},
		{"adds somebody", mine, trusting(others, mine), true},
		{"somebody else's only", mine, trusting(others), false},
		{"one of two", append(append([]byte{}, mine...), others...), trusting(mine), false},
		{"generic image", nil, trusting(others), true},
	} {
		if err := keepsOperator(c.image, c.next); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
