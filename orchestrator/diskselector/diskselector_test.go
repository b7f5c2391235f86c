package diskselector

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

var disks = []nodespec.DiskMatchDisk{
	{Path: "/dev/nvme0n1", Size: 500 << 30, SectorSize: 4096, Model: "Samsung SSD 980", Serial: "S64D", WWID: "eui.0025", Bus: "/pci0000:00", Transport: "nvme"},
	{Path: "/dev/sda", Size: 2 << 40, SectorSize: 512, Model: "WD", Transport: "sata", Rotational: true},
	{Path: "/dev/sdb", Size: 1 << 30, Transport: "usb", ReadOnly: true},
}

func TestAnswer(t *testing.T) {
	for _, c := range []struct {
		expression string
		matches    string // the paths of the matching disks, separated by blanks
		problem    string // a part of the problem; empty if there is none
	}{
		{"true", "/dev/nvme0n1 /dev/sda /dev/sdb", ""},
		{"disk.size >= 100 * GiB && !disk.rotational", "/dev/nvme0n1", ""},
		{"disk.size > TiB", "/dev/sda", ""},
		{"disk.size == 1024 * MiB || disk.size == 1024 * 1024 * KiB", "/dev/sdb", ""},
		{`disk.model.startsWith("Samsung") && disk.serial == "S64D" && disk.wwid.matches("^eui")`, "/dev/nvme0n1", ""},
		{`disk.transport in ["sata", "usb"] && disk.path != "/dev/sda"`, "/dev/sdb", ""},
		{`disk.sectorSize == 4096 && disk.bus != ""`, "/dev/nvme0n1", ""},
		{"disk.readOnly", "/dev/sdb", ""},
		{"false", "", ""},
		{"disk.sizes > 1", "", "is not an expression about a disk: 1:"},
		{"disk.size >", "", "is not an expression about a disk: 1:12: Syntax error"},
		{"disk.size > \"1\"", "", "no matching overload"},
		{"disk.size", "", "is neither true nor false, but int"},
		{"1 / (disk.size - disk.size) > 0", "", "cannot be evaluated for /dev/nvme0n1: division by zero"},
		{"[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, a+b+c+d+e > 0)))))", "", "cost limit"},
	} {
		in, err := json.Marshal(nodespec.DiskMatchRequest{Expression: c.expression, Disks: disks})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := Answer(bytes.NewReader(in), &out); err != nil {
			t.Fatal(err)
		}
		var got nodespec.DiskMatchResult
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Matches, strings.Fields(c.matches)) || !strings.Contains(got.Problem, c.problem) || (c.problem == "") != (got.Problem == "") {
			t.Errorf("%s: %+v", c.expression, got)
		}
	}
	if err := Answer(strings.NewReader("no"), new(bytes.Buffer)); err == nil {
		t.Error("Answer accepts a request that is not JSON")
	}
}
