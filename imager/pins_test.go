package main

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/imager/outdated"
	"github.com/orlop-os/orlop/pkg/buildinfo"
)

// TestPinsAreCurrent checks that the recorded dates belong to the present lock file and go.mod
// files.
func TestPinsAreCurrent(t *testing.T) {
	t.Chdir("..")
	p, notes, err := readPins()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range notes {
		t.Error(n)
	}
	if r := p.release(); len(notes) == 0 && (r.Debian == 0 || r.Modules == 0 || len(p.Modules.Components) < 5) {
		t.Errorf("%s: %+v: a date or a component is missing", pinsFile, p)
	}
}

func TestPinsOfOtherVersions(t *testing.T) {
	archive, published := time.Unix(1_700_000_000, 0), time.Unix(1_600_000_000, 0)
	p := Pins{Debian: DebianPins{Archive: archive, SHA256: "aa"}, Modules: ModulePins{Published: published, SHA256: "bb"}}
	for name, c := range map[string]struct {
		lock, modules string
		want          buildinfo.Pins
		notes         []string
	}{
		"no change":                    {"aa", "bb", buildinfo.Pins{Debian: 1_700_000_000, Modules: 1_600_000_000}, nil},
		"other lock":                   {"ab", "bb", buildinfo.Pins{Modules: 1_600_000_000}, []string{"run `imager lock`"}},
		"other modules":                {"aa", "bc", buildinfo.Pins{Debian: 1_700_000_000}, []string{"run `imager lock -modules`"}},
		"other lock and other modules": {"ab", "bc", buildinfo.Pins{}, []string{"run `imager lock`", "run `imager lock -modules`"}},
	} {
		got, notes := p.of(c.lock, c.modules)
		if got.release() != c.want || len(notes) != len(c.notes) {
			t.Errorf("%s: %+v, notes %q; want %+v", name, got.release(), notes, c.want)
			continue
		}
		for i, n := range notes {
			if !strings.HasSuffix(n, c.notes[i]) {
				t.Errorf("%s: note %q, want the end %q", name, n, c.notes[i])
			}
		}
	}
}

func TestDatesOfModules(t *testing.T) {
	linked, err := linkedModules(strings.NewReader(`{}
{"Module": {"Path": "example.com/os", "Main": true}}
{"Module": {"Path": "k8s.io/kubernetes", "Version": "v1.36.3", "Time": "2026-07-22T18:07:38Z"}}
{"Module": {"Path": "k8s.io/kubernetes", "Version": "v1.36.3", "Time": "2026-07-22T18:07:38Z"}}
{"Module": {"Path": "example.com/a", "Version": "v1.0.0", "Time": "2030-01-01T00:00:00Z", "Replace": {"Path": "example.com/b", "Version": "v1.1.0", "Time": "2026-11-10T19:15:21Z"}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	got, err := datesOf(linked)
	want := ModulePins{Newest: "example.com/b@v1.1.0", Published: time.Date(2026, 11, 10, 19, 15, 21, 0, time.UTC),
		Components: []PinnedComponent{{"Kubernetes", "v1.36.3", time.Date(2026, 7, 22, 18, 7, 38, 0, time.UTC)}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if _, err := datesOf([]outdated.Facts{{Path: "example.com/a", Version: "v1.0.0"}}); err == nil || !strings.Contains(err.Error(), "example.com/a@v1.0.0") {
		t.Errorf("a module without a time: error %v, want its name", err)
	}
	if got, err := linkedModules(strings.NewReader(`{"Module": `)); err == nil {
		t.Errorf("an answer that is cut off: %v", got)
	}
}
