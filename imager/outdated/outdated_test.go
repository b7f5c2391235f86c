package outdated

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/imager/debian"
)

// today is the day of the comparisons.
var today = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func pins(t *testing.T, file, name string) []Pin {
	t.Helper()
	all, err := Pins(file, read(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func facts(t *testing.T, name string) map[string]Facts {
	t.Helper()
	all, err := ParseFacts(bytes.NewReader(read(t, name)))
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]Facts{}
	for _, f := range all {
		by[f.Path+"@"+f.Version] = f
	}
	return by
}

// answers returns the answers of all sources, from the files of testdata.
func answers(t *testing.T) Answers {
	t.Helper()
	archive, database := today.Add(-48*time.Hour), today.Add(-23*24*time.Hour)
	a := Answers{
		Pins:  slices.Concat(pins(t, "go.mod", "main.mod"), pins(t, "imager/components/go.mod", "components.mod")),
		Facts: facts(t, "facts.json"),
		Served: map[string]map[string]bool{
			"k8s.io/kubernetes":      {"v1.36.4": true, "v1.36.5": true, "v1.36.6": false},
			"example.com/refused/v2": {"v2.0.26": false, "v2.0.32": true, "v2.1.0": false},
		},
		Go: "go1.26.8", Toolchain: facts(t, "toolchain.json")["go@1.26.8"], Database: &database,
		LockFile: "imager/packages.lock", Archive: &archive,
		Lock: debian.Lock{Suite: "bookworm", Packages: []debian.Package{
			{Want: "libc6", Name: "libc6", Version: "2.36-9+deb12u7"},
			{Want: "linux-image-6.12-amd64", Name: "linux-image-6.12.9+deb12-amd64", Version: "6.12.9-1~deb12u1"},
			{Want: "netbase", Name: "netbase", Version: "6.4"},
			{Want: "nftables", Name: "nftables", Version: "1.0.6-2+deb12u2"},
			{Want: "gone", Name: "gone", Version: "1:1.0-1"},
		}},
		Offers: []debian.Offer{
			{Package: "libc6", Version: "2.36-9+deb12u14", Suite: "bookworm"}, {Package: "libc6", Version: "2.36-9+deb12u10", Suite: "bookworm-security"},
			{Package: "linux-image-6.12-amd64", Version: "6.12.117-1~deb12u1", Suite: "bookworm-security"},
			{Package: "netbase", Version: "6.5", Suite: "bookworm-updates"}, {Package: "netbase", Version: "6.4", Suite: "bookworm"},
			{Package: "nftables", Version: "1.0.6-2+deb12u2", Suite: "bookworm"}, {Package: "nftables", Version: "1.0.6-2+deb12u1", Suite: "bookworm-security"},
		},
	}
	for name, image := range map[string]bool{"image.json": true, "tests.json": false} {
		found, err := ParseFindings(bytes.NewReader(read(t, name)), image)
		if err != nil {
			t.Fatal(err)
		}
		a.Findings = append(a.Findings, found...)
	}
	accepted, err := ParseAccepted("accepted.json", read(t, "accepted.json"))
	if err != nil {
		t.Fatal(err)
	}
	a.Accepted = accepted
	suite, err := suiteItem(bytes.NewReader(read(t, "suites.csv")), a.Lock.Suite, a.LockFile, today)
	if err != nil {
		t.Fatal(err)
	}
	a.Suite = &suite
	return a
}

func TestReport(t *testing.T) {
	r, err := Compare(answers(t), today, false)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := r.Print(&text); err != nil {
		t.Fatal(err)
	}
	golden.Assert(t, text.String(), "report.txt")
	object, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Assert(t, string(object)+"\n", "report.json")
}

func TestAll(t *testing.T) {
	has := func(all bool) bool {
		r, err := Compare(answers(t), today, all)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(r.Items, func(i Item) bool { return i.Name == "example.com/quiet" })
	}
	if has(false) || !has(true) {
		t.Errorf("an indirect module without vulnerabilities: listed without -all: %v, with -all: %v", has(false), has(true))
	}
}

func TestExit(t *testing.T) {
	fixed := Item{Kind: KindModule, Advisories: []Advisory{{ID: "GO-1", Image: true, Fixed: "v1.0.1"}}}
	harmless := []Item{
		{Kind: KindModule, Newest: "v2.0.0"},
		{Kind: KindModule, Advisories: []Advisory{{ID: "GO-1", Fixed: "v1.0.1"}}, Fixed: "v1.0.1"},
		{Kind: KindModule, Advisories: []Advisory{{ID: "GO-1", Image: true}}},
		{Kind: KindModule, Advisories: []Advisory{{ID: "GO-1", Image: true, Fixed: "v1.0.1", Accepted: "is not called"}}},
		{Kind: KindDebian, Newest: "2"},
	}
	for name, c := range map[string]struct {
		r    Report
		want int
	}{
		"no vulnerability of the image that has a fix":        {Report{Items: harmless}, ExitCurrent},
		"a module with a fix":                                 {Report{Items: append(slices.Clone(harmless), fixed)}, ExitSecurity},
		"a Debian package with a fix":                         {Report{Items: []Item{{Kind: KindDebian, Newest: "3", Fixed: "2"}}}, ExitSecurity},
		"a source without an answer":                          {Report{Items: harmless, Failed: []string{"Debian: no"}}, ExitFailed},
		"a source without an answer, and a module with a fix": {Report{Items: []Item{fixed}, Failed: []string{"Debian: no"}}, ExitSecurity},
	} {
		if got := c.r.Exit(); got != c.want {
			t.Errorf("%s: exit status %d, want %d", name, got, c.want)
		}
	}
}

func TestStaleLists(t *testing.T) {
	a := answers(t)
	old := today.Add(-staleAfter - time.Hour)
	a.Archive = &old
	r, err := Compare(a, today, false)
	if err != nil || !slices.ContainsFunc(r.Failed, func(f string) bool { return strings.Contains(f, "apt's lists are of") }) {
		t.Errorf("lists of %v: failed %q, %v", old, r.Failed, err)
	}
}

// TestUnanswered checks that unanswered returns a single line for all modules with the same error.
func TestUnanswered(t *testing.T) {
	got := unanswered([]Item{{Name: "a", Pinned: "v1", unanswered: "no route"}, {Name: "b", Pinned: "v1"}, {Name: "c", Pinned: "v1", unanswered: "not listed"},
		{Name: "d", Pinned: "v2", unanswered: "no route"}})
	if want := []string{"a v1 and 1 more: no route", "c v1: not listed"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPins(t *testing.T) {
	got := map[string]Pin{}
	for _, p := range answers(t).Pins {
		got[p.File+" "+p.Module] = p
	}
	for key, want := range map[string]Pin{
		"go.mod k8s.io/api":   {Module: "k8s.io/api", Version: "v0.36.3", File: "go.mod", Follows: true},
		"go.mod k8s.io/utils": {Module: "k8s.io/utils", Version: "v0.0.0-20260210185600-b8788abfbbc2", File: "go.mod"},
		"imager/components/go.mod github.com/opencontainers/runc": {Module: "github.com/opencontainers/runc", Version: "v1.5.2", File: "imager/components/go.mod"},
		"imager/components/go.mod golang.org/x/net":               {Module: "golang.org/x/net", Version: "v0.59.0", File: "imager/components/go.mod", Indirect: true},
	} {
		if got[key] != want {
			t.Errorf("%s: %+v, want %+v", key, got[key], want)
		}
	}
	if p, ok := got["go.mod example.com/here"]; ok {
		t.Errorf("a module that a directory replaces is pinned: %+v", p)
	}
	if _, err := Pins("x/go.mod", []byte("module\n")); err == nil || !strings.Contains(err.Error(), "x/go.mod:1") {
		t.Errorf("a damaged file: error %v, want the name of the file and the line", err)
	}
}

func TestProbes(t *testing.T) {
	a := answers(t)
	for module, want := range map[string][]string{
		"k8s.io/kubernetes":      {"v1.36.6", "v1.36.5", "v1.36.4"},
		"example.com/accepted":   nil, // its only patch is the newest version
		"example.com/pseudo":     nil,
		"example.com/refused/v2": {"v2.0.26", "v2.0.27", "v2.0.28", "v2.0.29", "v2.0.30", "v2.0.31", "v2.0.32", "v2.0.33", "v2.0.34", "v2.0.35", "v2.1.0", "v2.2.0", "v2.3.0"},
	} {
		p := a.Pins[slices.IndexFunc(a.Pins, func(p Pin) bool { return p.Module == module })]
		if got := Probes(p, a.Facts[p.String()]); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", module, got, want)
		}
	}
}

func TestDamagedAnswers(t *testing.T) {
	if got, err := ParseFacts(strings.NewReader(`{"Path": "a"} {"Path`)); err == nil {
		t.Errorf("facts that are cut off: %v", got)
	}
	if got, err := ParseFindings(strings.NewReader(`{"finding": `), true); err == nil {
		t.Errorf("findings that are cut off: %v", got)
	}
	if got, err := suiteItem(strings.NewReader("version,series,release\n"), "bookworm", "lock", today); err == nil || !strings.Contains(err.Error(), "bookworm") {
		t.Errorf("a table without the suite: %v, %v", got, err)
	}
	if got, err := suiteItem(strings.NewReader(""), "bookworm", "lock", today); err == nil || strings.Contains(err.Error(), "%!") {
		t.Errorf("an empty table: %v, %v", got, err)
	}
	if got, err := debianItem(debian.Package{Want: "a", Name: "a", Version: "x:1"}, "lock", nil); err == nil {
		t.Errorf("an invalid version: %+v", got)
	}
}

func TestParseAccepted(t *testing.T) {
	text, err := os.ReadFile("../vulnerabilities.json")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseAccepted("imager/vulnerabilities.json", text); err != nil {
		t.Error(err)
	}
	const good = `{"id": "GO-1", "module": "example.com/a", "until": "2027-01-31", "reason": "is not called"}`
	for text, want := range map[string]string{
		`[{"id": "GO-1", "module": "example.com/a", "until": "2027-01-31"}]`:                      "reason",
		`[{"id": "GO-1", "module": "example.com/a", "until": "soon", "reason": "is not called"}]`: "2027-03-31",
		`[{"id": "GO-1", "modules": "example.com/a", "until": "2027-01-31", "reason": "is not"}]`: "modules",
		`[` + good + `, ` + good + `]`:      "twice",
		`[` + good + `] []`:                 "did not find expected",
		`[{"id": "GO-0", ` + good[1:] + `]`: "line 1: a field occurs twice",
	} {
		if got, err := ParseAccepted("x.json", []byte(text)); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "x.json: ") {
			t.Errorf("%s: %v, %v; want an error with %q", text, got, err, want)
		}
	}
}

// TestSources checks that Sources has every go.mod file of the repository, and that the components
// are pinned.
func TestSources(t *testing.T) {
	const top = "../.."
	var want, got []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && slices.Contains([]string{"testdata", "build", ".git"}, d.Name()) {
			return filepath.SkipDir
		}
		if err == nil && d.Name() == "go.mod" {
			path, err = filepath.Rel(top, path)
			want = append(want, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	pinned := map[string]bool{}
	for _, s := range Sources {
		got = append(got, s.File)
		text, err := os.ReadFile(filepath.Join(top, s.File))
		if err != nil {
			t.Fatal(err)
		}
		pins, err := Pins(s.File, text)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pins {
			pinned[p.Module] = pinned[p.Module] || s.Image && !p.Indirect
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Sources has %q, the repository has %q", got, want)
	}
	lock, err := debian.ReadLock(filepath.Join(top, "imager", "packages.lock"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(components)) {
		if _, err := lock.Find(name); err != nil && !pinned[name] {
			t.Errorf("%s: no file of the image pins this component", name)
		}
	}
}
