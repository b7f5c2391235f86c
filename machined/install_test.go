package main

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/install"
	"github.com/orlop-os/orlop/machined/seed"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disklayout"
	"github.com/orlop-os/orlop/pkg/pki"
)

// TestInstallDisk checks that all properties of a disk reach the selection, and that boot media are
// marked.
func TestInstallDisk(t *testing.T) {
	root := uuid.New()
	d := disk.Disk{
		Path: "/dev/sda", Size: 1 << 40, SectorSize: 512, Model: "m", Serial: "s", WWID: "w", Bus: "b", Transport: "t", ReadOnly: true, Table: "gpt",
		Partitions: []disk.Partition{{UUID: root, Entry: disk.Entry{Number: 1, Label: disklayout.ESP, Type: disklayout.TypeESP, Size: 5}, Content: disk.Content{Kind: "vfat", Label: "ESP"}}},
	}
	want := install.Disk{
		Path: "/dev/sda", Size: 1 << 40, SectorSize: 512, Model: "m", Serial: "s", WWID: "w", Bus: "b", Transport: "t", ReadOnly: true, Table: "gpt",
		Partitions: []install.Partition{{Number: 1, Label: disklayout.ESP, Type: disklayout.TypeESP, UUID: root, Size: 5, Content: "vfat ESP"}},
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

// TestCheckOperator checks that a medium cannot add or remove operators of a claimed machine. The
// error names the field.
func TestCheckOperator(t *testing.T) {
	authority := func() config.Certificate {
		ca, err := pki.NewCA("operator", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		c, err := config.ParseCertificate(string(ca.CertPEM()))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	mine, second, others := authority(), authority(), authority()
	machine := func(cas ...config.Certificate) *config.Config {
		return config.New("a", config.RoleControlPlane).WithOperatorCAs(cas...)
	}
	cluster := func(p config.PKI) *config.Config {
		return machine().WithCluster("c", config.Endpoint{}, p, config.EncryptionKey{})
	}
	accepted := func(cas ...config.Certificate) config.Accepted { return config.Accepted{Client: cas} }
	for _, c := range []struct {
		name  string
		owner []config.Certificate
		next  *config.Config
		says  string // empty: accepted
	}{
		{"names nobody", []config.Certificate{mine}, machine(), ""},
		{"names the owner", []config.Certificate{mine}, machine(mine), ""},
		{"names the owner twice", []config.Certificate{mine}, machine(mine, mine), ""},
		{"adds an operator", []config.Certificate{mine}, machine(mine, others), "Machine.spec.trust.operatorCAs[1]: cannot add"},
		{"adds an operator first", []config.Certificate{mine}, machine(others, mine), "Machine.spec.trust.operatorCAs[0]: cannot add"},
		{"replaces the owner", []config.Certificate{mine}, machine(others), "Machine.spec.trust.operatorCAs[0]: cannot add"},
		{"leaves out one of two owners", []config.Certificate{mine, second}, machine(mine), "Machine.spec.trust.operatorCAs: cannot omit"},
		{"leaves out one of two owners, naming it elsewhere", []config.Certificate{mine, second},
			machine(mine).WithCluster("c", config.Endpoint{}, config.PKI{Client: config.CertKey{Cert: second}}, config.EncryptionKey{}), "operatorCAs: cannot omit"},
		{"names both owners", []config.Certificate{mine, second}, machine(second, mine), ""},
		{"a cluster without a client CA", []config.Certificate{mine}, cluster(config.PKI{Machine: config.CertKey{Cert: others}}), ""},
		{"a client CA", []config.Certificate{mine}, cluster(config.PKI{Client: config.CertKey{Cert: others}}), "Cluster.spec.pki.client.cert: cannot add"},
		{"the owner's as client CA", []config.Certificate{mine}, cluster(config.PKI{Client: config.CertKey{Cert: mine}}), ""},
		{"an accepted client CA", []config.Certificate{mine}, cluster(config.PKI{Client: config.CertKey{Cert: mine}, Accepted: accepted(mine, others)}), "Cluster.spec.pki.accepted.client[1]: cannot add"},
		{"an accepted client CA that does not count yet", []config.Certificate{mine}, cluster(config.PKI{Accepted: accepted(others)}), "Cluster.spec.pki.accepted.client[0]: cannot add"},
		{"nobody's machine", nil, machine(others), ""},
		{"nobody's machine, with a client CA", nil, cluster(config.PKI{Client: config.CertKey{Cert: others}}), ""},
	} {
		var owner []byte
		for _, ca := range c.owner {
			owner = append(owner, ca.PEM()...)
		}
		err := checkOperator(owner, c.next)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := checkOperator([]byte("no certificate"), machine()); err == nil {
		t.Error("an owner that cannot be read is nobody")
	}
}
