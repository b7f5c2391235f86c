package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/vm/writelog"
)

// logOf returns a log in the format of package writelog, with an operation for each letter: d is a
// write to DATA, s is a write to another partition, and f is a flush.
func logOf(t *testing.T, ops string) (*recording, *writelog.Log) {
	t.Helper()
	var b bytes.Buffer
	sector := func(words ...uint64) {
		s := make([]byte, writelog.SectorSize)
		for i, w := range words {
			binary.LittleEndian.PutUint64(s[8*i:], w)
		}
		b.Write(s)
	}
	sector(0x6a736677736872, 1, 0, writelog.SectorSize)
	for _, op := range ops {
		switch op {
		case 'd':
			sector(1000, 1, 0)
			sector()
		case 's':
			sector(10, 1, 0)
			sector()
		case 'f':
			sector(0, 0, 1)
		}
	}
	l, err := writelog.Read(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil || len(l.Ops) != len(ops) {
		t.Fatalf("the log has %d operations: %v", len(l.Ops), err)
	}
	return &recording{Data: place{Sector: 1000}}, l
}

// TestInstant checks that the drawn instants of a class are exactly the instants in the spans of
// this class. Stretches with a write outside DATA must be drawn more often than their share of all
// stretches.
func TestInstant(t *testing.T) {
	r, l := logOf(t, "sf"+"dfdfdf"+"ssf"+"dfdfdfdfdfdf"+"dsf")
	end := func(n int) int64 { return l.Ops[n-1].End }
	r.Spans = []span{{"first-boot", 0, end(2)}, {"upgrade", end(2), end(8)}, {"run", end(8), end(11)}, {"upgrade", end(11), end(23)}, {"run", end(23), end(26)}}
	drawn := map[string]map[int]int{}
	for number := range 3000 {
		for _, class := range r.classes() {
			if drawn[class] == nil {
				drawn[class] = map[int]int{}
			}
			drawn[class][instant(r, l, class, draws(7, number))]++
		}
	}
	for class, want := range map[string][]int{
		"first-boot": {1, 2}, "upgrade": {3, 4, 5, 6, 7, 8, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}, "run": {9, 10, 11, 24, 25, 26},
	} {
		var got []int
		for n := range drawn[class] {
			got = append(got, n)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("class %s: the drawn instants are %v, want %v", class, got, want)
		}
	}
	r.Spans = []span{{"all", end(2), end(23)}} // one of the ten stretches has a write outside DATA
	outside := 0
	for number := range 1000 {
		if n := instant(r, l, "all", draws(8, number)); n >= 9 && n <= 11 {
			outside++
		}
	}
	if outside < 450 || outside > 650 {
		t.Errorf("%d of 1000 instants are in the stretch with a write outside DATA, want 450 to 650", outside)
	}
}

func TestPlan(t *testing.T) {
	recorded := []string{"first-boot", "apply", "upgrade"}
	for _, c := range []struct {
		wanted string
		want   string
	}{
		{"", "first-boot apply upgrade kill kill"},
		{"upgrade,apply", "apply upgrade"},
		{"kill", "kill kill"},
	} {
		var wanted []string
		if c.wanted != "" {
			wanted = strings.Split(c.wanted, ",")
		}
		if got := strings.Join(plan(recorded, wanted), " "); got != c.want {
			t.Errorf("wanted classes %q: the plan is %s", c.wanted, got)
		}
	}
}

// TestPromised checks the guarantees at several lengths of the log.
func TestPromised(t *testing.T) {
	r := recording{
		Identity: "id", Configuration: "c", Old: "1", New: "2", Answered: 10, ApplyBegan: 20, Applied: 30, UpgradeBegan: 50,
		Writes: []object{{"a", 40}, {"b", 60}},
	}
	for _, c := range []struct {
		length int64
		want   promise
		writes string
	}{
		{5, promise{Versions: []string{"1"}}, ""},
		{20, promise{Versions: []string{"1"}, Identity: "id"}, ""},
		{25, promise{Versions: []string{"1"}, Identity: "id", Configuration: "c"}, ""},
		{45, promise{Versions: []string{"1"}, Identity: "id", Configuration: "c", Configured: true}, "a"},
		{60, promise{Versions: []string{"1", "2"}, Identity: "id", Configuration: "c", Configured: true, Upgraded: true}, "a b"},
	} {
		got, writes := r.promised(c.length), strings.Join(r.acknowledged(c.length), " ")
		if text, want := jsonOf(t, got), jsonOf(t, c.want); text != want || writes != c.writes {
			t.Errorf("length %d of the log: the guarantees are %s, and the objects %q; want %s, and %q", c.length, text, writes, want, c.writes)
		}
	}
	half := recording{Old: "1", Answered: 10} // the recording ended before an upgrade
	if got := half.promised(100); got.Upgraded || got.Configuration != "" || len(got.Versions) != 1 {
		t.Errorf("the guarantees of a recording without an upgrade are %+v", got)
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestJudge checks the violations of the promises for a machine that is not configured (before),
// whose configuration is in progress (applying), and whose upgrade has started (upgraded).
func TestJudge(t *testing.T) {
	before := promise{Versions: []string{"1"}}
	applying := promise{Versions: []string{"1"}, Identity: "id", Configuration: "c"}
	upgraded := promise{Versions: []string{"1", "2"}, Identity: "id", Configuration: "c", Configured: true, Upgraded: true}
	for name, c := range map[string]struct {
		promise
		seen
		wrong string // expected violation; empty: none
	}{
		"no configuration":                        {before, seen{Version: "1", Identity: "any", Uptime: time.Second}, ""},
		"a configuration that was not applied":    {before, seen{Version: "1", Configuration: "x"}, "not the one that was applied"},
		"cut before the configuration was stored": {applying, seen{Version: "1", Identity: "id"}, ""},
		"cut after the configuration was stored":  {applying, seen{Version: "1", Identity: "id", Configuration: "c"}, ""},
		"a part of the configuration":             {applying, seen{Version: "1", Identity: "id", Configuration: "half"}, "not the one that was applied"},
		"an upgrade that was not started":         {applying, seen{Version: "1", Identity: "id", Phase: "failed"}, "no upgrade was started"},
		"another identity":                        {applying, seen{Version: "1", Identity: "other"}, "another identity"},
		"an interrupted upgrade failed":           {upgraded, seen{Version: "1", Identity: "id", Configuration: "c", Phase: "failed"}, ""},
		"the new version is on trial":             {upgraded, seen{Version: "2", Identity: "id", Configuration: "c", Phase: "trial"}, ""},
		"an upgrade stays in the phase written":   {upgraded, seen{Version: "1", Identity: "id", Configuration: "c", Phase: "written"}, `the upgrade is "written"`},
		"the old version runs after a commit":     {upgraded, seen{Version: "1", Identity: "id", Configuration: "c", Phase: "committed"}, `the upgrade is "committed"`},
		"the new version runs without a phase":    {upgraded, seen{Version: "2", Identity: "id", Configuration: "c"}, `the upgrade is ""`},
		"a third version runs":                    {upgraded, seen{Version: "3", Identity: "id", Configuration: "c"}, "version 3 runs"},
		"an acknowledged configuration is lost":   {upgraded, seen{Version: "1", Identity: "id", Phase: "failed"}, "not the one that was applied"},
		"STATE is damaged":                        {applying, seen{Version: "1", Identity: "id", Storage: "damaged"}, "no storage: damaged"},
		"the first answer is late":                {before, seen{Version: "1", Uptime: 3 * time.Minute}, "after 180 s"},
	} {
		wrong := c.judge(c.seen)
		if c.wrong == "" && len(wrong) > 0 || c.wrong != "" && (len(wrong) != 1 || !strings.Contains(wrong[0], c.wrong)) {
			t.Errorf("%s: the problems are %q", name, wrong)
		}
	}
}

func TestReport(t *testing.T) {
	r := report{Seed: 1, Wanted: 4, Runs: []result{
		{Class: "apply", Outcome: recovered, Answered: 8, Healthy: 40, Whole: true},
		{Class: "apply", Outcome: recovered, Answered: 6},
		{Class: "run", Outcome: faulty, Answered: 9, Wrong: []string{"lost"}},
		{Number: 3, Class: "run", Outcome: bricked, Wrong: []string{"dark"}, Kept: "there"},
	}}
	r.summarise()
	if want := (tally{Cuts: 4, Bricked: 1, Faults: 1, Recovered: 2, Whole: 1}); r.tally != want || *r.ByClass["run"] != (tally{Cuts: 2, Bricked: 1, Faults: 1}) {
		t.Errorf("the counts are %+v, and for the class run %+v", r.tally, *r.ByClass["run"])
	}
	if *r.Answered != (spread{8, 9}) || *r.Healthy != (spread{40, 40}) {
		t.Errorf("the times until the first answer are %+v, and until the cluster was healthy %+v", r.Answered, r.Healthy)
	}
	var out strings.Builder
	r.print(&out)
	for _, want := range []string{"run    2     1        1       0", "cut 3 of seed 1", "dark", "kept in there"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the printed report lacks %q:\n%s", want, out.String())
		}
	}
	if text := jsonOf(t, r); !strings.Contains(text, `"cuts":4,"bricked":1,"faults":1,"recovered":2`) || !strings.Contains(text, `"by_class":{"apply":{"cuts":2`) {
		t.Error("the report as JSON lacks a count: " + text)
	}
}

func TestParse(t *testing.T) {
	o, err := parse([]string{"-n", "4", "-classes", "apply,kill"})
	if err != nil || o.cuts != 4 || o.seed == 0 || !slices.Equal(o.classes, []string{"apply", "kill"}) {
		t.Errorf("parse returns %+v, %v", o, err)
	}
	for _, args := range [][]string{{"-n", "0"}, {"-classes", "install"}, {"more"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("parse accepts the arguments %q", args)
		}
	}
}

// TestLacks checks the problems of boot entries during the trial (length 5), the commit (15) and
// after the commit (20).
func TestLacks(t *testing.T) {
	r := recording{Old: "1.0", New: "2.0", Spans: []span{{"trial", 0, 10}, {"commit", 10, 20}}}
	a, b, half := [sha256.Size]byte{1}, [sha256.Size]byte{2}, [sha256.Size]byte{3}
	type files = map[string][sha256.Size]byte
	whole := files{"1.0": a, "2.0": b}
	for name, c := range map[string]struct {
		length int64
		found  files
		wrong  string
	}{
		"the new version is on trial":             {5, files{"orlop-1.0.efi": a, "orlop-2.0+2-1.efi": b}, ""},
		"the entry on trial is lost":              {5, files{"orlop-1.0.efi": a}, ""},
		"the new version is committed":            {20, files{"orlop-1.0.efi": a, "orlop-2.0.efi": b}, ""},
		"the new entry has both of its names":     {20, files{"orlop-1.0.efi": a, "orlop-2.0.efi": b, "orlop-2.0+2-1.efi": b}, ""},
		"the new entry is lost during the commit": {15, files{"orlop-1.0.efi": a}, "the loader would start 1.0"},
		"the new entry is incomplete":             {5, files{"orlop-1.0.efi": a, "orlop-2.0.efi": half}, "orlop-2.0.efi is incomplete"},
		"the old entry is lost":                   {5, files{"orlop-2.0.efi": b}, "the entry of version 1.0 is missing"},
	} {
		wrong := r.lacks(c.length, c.found, whole)
		if c.wrong == "" && len(wrong) > 0 || c.wrong != "" && (len(wrong) != 1 || !strings.Contains(wrong[0], c.wrong)) {
			t.Errorf("%s: the problems are %q", name, wrong)
		}
	}
}
