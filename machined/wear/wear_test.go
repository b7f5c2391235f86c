package wear

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/pkg/cell"
)

// nvmePage returns a log page of an NVMe disk.
func nvmePage(warning, spare, threshold, used byte, mediaErrors uint64) []byte {
	b := make([]byte, pageSize)
	b[0], b[3], b[4], b[5] = warning, spare, threshold, used
	binary.LittleEndian.PutUint16(b[1:], 273+38)
	binary.LittleEndian.PutUint64(b[128:], 12345)
	binary.LittleEndian.PutUint64(b[160:], mediaErrors)
	return b
}

// ataPage returns the attributes of an ATA disk, with a correct checksum.
func ataPage(attributes map[byte]uint32) []byte {
	b := make([]byte, pageSize)
	b[0] = 16 // revision of the structure
	at := ataFirst
	for number, raw := range attributes {
		b[at] = number
		binary.LittleEndian.PutUint32(b[at+ataRaw:], raw)
		at += ataEntrySize
	}
	var sum byte
	for _, c := range b {
		sum += c
	}
	b[pageSize-1] = -sum
	return b
}

// statistics returns a page of ATA device statistics with a used percentage.
func statistics(number, flags, used byte) []byte {
	b := make([]byte, pageSize)
	b[2], b[8], b[15] = number, used, flags
	return b
}

// sense returns the sense data with the registers of an ATA disk.
func sense(form, mid, high byte) []byte {
	b := make([]byte, 22)
	b[0], b[8], b[9], b[17], b[19] = form, 0x09, 0x0c, mid, high
	return b
}

// TestSizes compares the sizes and offsets of the structures with the sizes and offsets of the
// kernel.
func TestSizes(t *testing.T) {
	if n, a := unsafe.Sizeof(nvmeCommand{}), unsafe.Sizeof(scsiCommand{}); n != adminCommand>>16&0x3fff || a != 88 {
		t.Errorf("the structures have %d and %d bytes", n, a)
	}
	if n, a := unsafe.Offsetof(nvmeCommand{}.words), unsafe.Offsetof(scsiCommand{}.result); n != 40 || a != 64 {
		t.Errorf("offsets %d and %d", n, a)
	}
}

// TestJudgment compares the decoded log and the warnings of each disk with its golden file.
func TestJudgment(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	ago := func(days int) Record { return Record{Grew: now.Add(-time.Duration(days) * 24 * time.Hour)} }
	large := nvmePage(0, 100, 10, 3, 1)
	large[170] = 1
	checksum := ataPage(map[byte]uint32{ataHours: 7})
	checksum[100]++
	for _, c := range []struct {
		name   string
		page   []byte
		ata    bool
		record Record
	}{
		{name: "a new NVMe disk", page: nvmePage(0, 100, 10, 0, 0)},
		{name: "worn at 89", page: nvmePage(0, 100, 10, 89, 0)},
		{name: "worn at 90", page: nvmePage(0, 100, 10, 90, 0)},
		{name: "worn beyond its life", page: nvmePage(0, 100, 10, 255, 0)},
		{name: "spare at its threshold", page: nvmePage(0, 10, 10, 50, 0)},
		{name: "spare below its threshold", page: nvmePage(0, 9, 10, 50, 0)},
		{name: "spare below its threshold, as the disk says", page: nvmePage(1, 9, 10, 95, 0)},
		{name: "each warning", page: nvmePage(0xff, 100, 10, 0, 0)},
		{name: "hot and worn", page: nvmePage(2, 100, 10, 91, 0)},
		{name: "old errors", page: nvmePage(0, 100, 10, 0, 7)},
		{name: "errors grew yesterday", page: nvmePage(0, 100, 10, 0, 7), record: ago(1)},
		{name: "errors grew 29 days ago", page: nvmePage(0, 100, 10, 0, 7), record: ago(29)},
		{name: "errors grew 30 days ago", page: nvmePage(0, 100, 10, 0, 7), record: ago(30)},
		{name: "errors grew, and the clock went back", page: nvmePage(0, 100, 10, 0, 7), record: ago(-3)},
		{name: "more errors than a number holds", page: large, record: ago(1)},
		{name: "an empty log", page: make([]byte, pageSize)},
		{name: "a short log", page: make([]byte, 100)},
		{name: "an ATA disk", page: ataPage(map[byte]uint32{ataHours: 700, ataTemperature: 31}), ata: true},
		{name: "an ATA disk below zero", page: ataPage(map[byte]uint32{ataTemperature: 0xfffffffb}), ata: true},
		{name: "an ATA disk with errors", page: ataPage(map[byte]uint32{ataUncorrectable: 1, ataPending: 8, ataOffline: 2}), ata: true, record: ago(2)},
		{name: "an ATA log with a wrong checksum", page: checksum, ata: true},
		{name: "an empty ATA log", page: make([]byte, pageSize), ata: true},
		{name: "a short ATA log", page: nil, ata: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			decode := decodeNVMe
			if c.ata {
				decode = decodeATA
			}
			l, err := decode(c.page)
			text := fmt.Sprintf("%s\n", describe(l))
			if err != nil {
				text = "cannot decode: " + err.Error() + "\n"
			} else {
				problem, remark := judge(l, c.record, now)
				text += "problem: " + problem + "\nremark: " + remark + "\n"
			}
			golden.Assert(t, text, c.name+".txt")
		})
	}
}

// describe returns the values of a log in one line.
func describe(l Log) string {
	value := func(p *int) string {
		if p == nil {
			return "-"
		}
		return fmt.Sprint(*p)
	}
	return fmt.Sprintf("used %s, spare %s of %s, %s °C, %d hours, %d errors, out of range %t, %v", value(l.UsedPercent), value(l.SparePercent), value(l.SpareThreshold), value(l.Temperature), l.PowerOnHours, l.Errors, l.OutOfRange, l.Failures)
}

func TestUsedByATA(t *testing.T) {
	for name, c := range map[string]struct {
		page []byte
		want *int
	}{
		"reported":      {statistics(7, 0xc0, 93), new(93)},
		"not valid":     {statistics(7, 0x80, 93), nil},
		"not supported": {statistics(7, 0x40, 93), nil},
		"another page":  {statistics(5, 0xc0, 93), nil},
		"short":         {nil, nil},
	} {
		if got := usedByATA(c.page); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestFailedByATA(t *testing.T) {
	for name, c := range map[string]struct {
		sense []byte
		want  bool
	}{
		"passed":            {sense(0x72, 0x4f, 0xc2), false},
		"failed":            {sense(0x72, 0xf4, 0x2c), true},
		"another format":    {sense(0x70, 0xf4, 0x2c), false},
		"only one register": {sense(0x72, 0xf4, 0xc2), false},
		"short":             {sense(0x72, 0xf4, 0x2c)[:21], false},
		"no sense data":     {nil, false},
	} {
		if got := failedByATA(c.sense); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestNext checks which numbers of errors count as growth.
func TestNext(t *testing.T) {
	now, before := time.Unix(2000, 0), time.Unix(1000, 0)
	for name, c := range map[string]struct {
		before Record
		known  bool
		errors uint64
		want   Record
	}{
		"the first reading": {Record{}, false, 7, Record{Errors: 7}},
		"unchanged":         {Record{Errors: 7}, true, 7, Record{Errors: 7}},
		"growth":            {Record{Errors: 7}, true, 8, Record{8, now}},
		"growth again":      {Record{7, before}, true, 8, Record{8, now}},
		"no more growth":    {Record{7, before}, true, 7, Record{7, before}},
		"fewer errors":      {Record{7, before}, true, 2, Record{2, before}},
	} {
		if got := next(c.before, c.known, c.errors, now); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// machine is a Controller with disks. A test chooses their logs and errors.
type machine struct {
	disks  *cell.Cell[[]Target]
	logs   map[string]Log
	errs   map[string]error
	file   string
	events []string
	c      *Controller
}

func newMachine(t *testing.T) *machine {
	m := &machine{disks: cell.New([]Target{
		{Path: "/dev/nvme0n1", Model: "M", Serial: "S1", Transport: NVMe}, {Path: "/dev/sda", Model: "M", Serial: "S2", Transport: SATA}, {Path: "/dev/vda", Transport: "virtio"},
	}), logs: map[string]Log{}, errs: map[string]error{}, file: filepath.Join(t.TempDir(), "wear.json")}
	m.restart()
	return m
}

// restart replaces the Controller, as after a reboot; only the record file stays.
func (m *machine) restart() {
	m.c = New(Deps{
		Disks: m.disks.View(), Now: time.Now, File: func() string { return m.file },
		Read:  func(target Target) (Log, error) { return m.logs[target.Path], m.errs[target.Path] },
		Event: func(_, message string) { m.events = append(m.events, message) },
	})
}

// TestController checks the published wear of disks that change over hours, days and restarts, and
// that each warning causes one event per boot.
func TestController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		run := func() (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { m.c.Run(ctx); close(done) }()
			synctest.Wait()
			return func() { cancel(); <-done }
		}
		expect := func(want string) {
			t.Helper()
			all, _ := m.c.Disks().Get()
			var lines []string
			for _, d := range all {
				lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %d %s|%s|%s", d.Path, d.Errors, d.Problem, d.Remark, d.Unknown)))
			}
			if got := strings.Join(lines, "\n"); got != want {
				t.Fatalf("got:\n%s\nwant:\n%s", got, want)
			}
		}
		m.logs["/dev/nvme0n1"] = Log{Errors: 5}
		m.errs["/dev/sda"] = errors.New("no answer")
		stop := run()
		expect("/dev/nvme0n1 5 ||\n/dev/sda 0 ||no answer")
		m.logs["/dev/nvme0n1"], m.errs["/dev/sda"] = Log{Errors: 6}, nil
		m.logs["/dev/sda"] = Log{UsedPercent: new(90)}
		time.Sleep(interval)
		synctest.Wait()
		grown := "/dev/nvme0n1 6 its errors grew to 6 on 2000-01-01: replace it||\n/dev/sda 0 |90 % of its rated life are used: plan its replacement|"
		expect(grown)
		stop()
		m.restart()
		stop = run()
		expect(grown)
		m.errs["/dev/nvme0n1"] = errors.New("no answer")
		time.Sleep(interval)
		synctest.Wait()
		expect(strings.Replace(grown, "replace it||", "replace it||no answer", 1))
		delete(m.errs, "/dev/nvme0n1")
		m.disks.Set(m.disks.View().Watch().Current()[:1])
		synctest.Wait()
		expect(strings.Split(grown, "\n")[0])
		time.Sleep(growth)
		synctest.Wait()
		expect("/dev/nvme0n1 6 ||")
		stop()
		if want := []string{
			"disk /dev/nvme0n1 (serial S1): its errors grew to 6 on 2000-01-01: replace it",
			"disk /dev/sda (serial S2): 90 % of its rated life are used: plan its replacement",
		}; !slices.Equal(m.events, slices.Concat(want, want)) { // again after the restart
			t.Errorf("events %q", m.events)
		}
	})
}

// TestAbsentDisk checks that the record of a disk is retained while the disk is absent, and that
// the number of records is bounded.
func TestAbsentDisk(t *testing.T) {
	m := newMachine(t)
	targets, _ := m.disks.Get()
	disk := targets[:1]
	round := func(present []Target) { t.Helper(); m.c.round(t.Context(), present) }
	m.logs[disk[0].Path] = Log{Errors: 5}
	round(disk)
	m.logs[disk[0].Path] = Log{Errors: 6}
	round(disk)
	m.restart()
	round(nil)
	round(targets[1:2])
	round(disk)
	if all, _ := m.c.Disks().Get(); len(all) != 1 || !strings.Contains(all[0].Problem, "its errors grew to 6") {
		t.Errorf("the disks are %+v", all)
	}
	many := map[string]Record{}
	for i := range 2 * maxRecords {
		many[fmt.Sprint("other", i)] = Record{}
	}
	if err := writeRecords(m.file, many); err != nil {
		t.Fatal(err)
	}
	round(disk)
	records, err := readRecords(m.file)
	if _, present := records[disk[0].key()]; err != nil || len(records) != maxRecords || !present {
		t.Errorf("%d records, with a record of the disk: %t, %v", len(records), present, err)
	}
}

// TestDamagedRecord checks that an unreadable record file causes an event and is not replaced.
func TestDamagedRecord(t *testing.T) {
	m := newMachine(t)
	if err := os.WriteFile(m.file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	targets, _ := m.disks.Get()
	m.c.round(t.Context(), targets[:1])
	if len(m.events) != 1 || !strings.Contains(m.events[0], "cannot be read") {
		t.Errorf("events %q", m.events)
	}
	if text, err := os.ReadFile(m.file); err != nil || string(text) != "{" {
		t.Errorf("the record file is now %q, %v", text, err)
	}
	if all, _ := m.c.Disks().Get(); len(all) != 1 {
		t.Errorf("the disks are %+v", all)
	}
}

// FuzzLogs passes arbitrary pages to the decoders, which must not panic.
func FuzzLogs(f *testing.F) {
	for _, page := range [][]byte{nvmePage(1, 9, 10, 90, 7), ataPage(map[byte]uint32{ataPending: 1}), statistics(7, 0xc0, 93), sense(0x72, 0xf4, 0x2c)} {
		f.Add(page)
	}
	f.Fuzz(func(t *testing.T, page []byte) {
		for _, decode := range []func([]byte) (Log, error){decodeNVMe, decodeATA} {
			if l, err := decode(page); err == nil {
				judge(l, Record{}, time.Unix(0, 0))
			}
		}
		if used := usedByATA(page); used != nil && (*used < 0 || *used > 255) {
			t.Errorf("the used percentage is %d", *used)
		}
		failedByATA(page)
	})
}
