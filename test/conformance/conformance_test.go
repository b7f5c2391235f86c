package main

import (
	"archive/tar"
	"io/fs"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/imager/ociarchive"
	"github.com/orlop-os/orlop/pkg/config"
)

// list has the format of the suite's list of tests.
const list = `The following spec names can be used with 'ginkgo run --focus/skip':
    k8s.io/kubernetes@v1.2.3/test/e2e/apps/job.go:12: [sig-apps] Job should run (twice) [Conformance]
    k8s.io/kubernetes@v1.2.3/test/e2e/apps/job.go:12: [sig-apps] Job should run (twice) [Conformance]
    k8s.io/kubernetes@v1.2.3/test/e2e/apps/job.go:40: [sig-apps] Job should run (twice) [Conformance] more
    k8s.io/kubernetes@v1.2.3/test/e2e/apps/set.go:99: [sig-apps] Set [Serial] should stop [Conformance]
    k8s.io/kubernetes@v1.2.3/test/e2e/node/a.go:7: [sig-node] A should be slow [Slow]

`

const (
	job  = "[sig-apps] Job should run (twice) [Conformance]"
	more = job + " more"
	set  = "[sig-apps] Set [Serial] should stop [Conformance]"
	slow = "[sig-node] A should be slow [Slow]"
)

func TestChoose(t *testing.T) {
	all := tests(list)
	if want := []string{job, more, set, slow}; !slices.Equal(all, want) {
		t.Fatalf("tests are %q, want %q", all, want)
	}
	for _, c := range []struct {
		focus, skip string
		want        []string
	}{
		{`\[Conformance\]`, "", []string{job, more, set}},
		{`\[Conformance\]`, `\[Serial\]|more`, []string{job}},
		{"sig-node", "", []string{slow}},
	} {
		if got, err := choose(all, c.focus, c.skip); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("focus %q, skip %q: choose returns other tests than expected: %q, %v", c.focus, c.skip, got, err)
		}
	}
	for _, c := range [][2]string{{"nothing has this", ""}, {"(", ""}, {"sig", "("}, {"sig", "sig"}} {
		if got, err := choose(all, c[0], c[1]); err == nil {
			t.Errorf("focus %q, skip %q: choose returns %q, want an error", c[0], c[1], got)
		}
	}
}

func TestBatches(t *testing.T) {
	got := batches([]string{set, job, more, slow}, 2)
	if want := [][]string{{job, more}, {slow}, {set}}; !reflect.DeepEqual(got, want) {
		t.Errorf("batches are %q, want %q", got, want)
	}
	only := regexp.MustCompile(focus([]string{job, slow}))
	for name, want := range map[string]bool{job: true, slow: true, more: false, set: false} {
		if only.MatchString(name) != want {
			t.Errorf("%s: the expression of focus matches: %v", name, !want)
		}
	}
}

// said is a report in the format of the suite, with only the fields that parseJUnit reads.
const said = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="5"><testsuite name="Kubernetes e2e suite">
  <testcase name="[SynchronizedBeforeSuite]" status="passed" time="1"></testcase>
  <testcase name="[It] [sig-apps] Job should run (twice) [Conformance]" status="passed" time="2.5"></testcase>
  <testcase name="[It] [sig-apps] Job should run (twice) [Conformance]" status="failed" time="4">
    <failure message="timed out &lt;here&gt;" type="failed">at job.go:12</failure><system-err>log</system-err></testcase>
  <testcase name="[It] [sig-apps] Set [Serial] should stop [Conformance]" status="skipped" time="0.5"><skipped message="skipped - needs 3 nodes"></skipped></testcase>
  <testcase name="[It] [sig-node] A should be slow [Slow]" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
  <testcase name="[It] [sig-node] B should be broken off" status="interrupted" time="3"><error message="Interrupted by User" type="interrupted">x</error></testcase>
  <testcase name="[It] [sig-node] C should be left" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
</testsuite></testsuites>`

func TestJUnit(t *testing.T) {
	got, err := parseJUnit([]byte(said), []string{job, more, set, "[sig-node] B should be broken off", "[sig-node] C should be left"})
	want := map[string]outcome{
		// one of the two rows of this table test failed
		job: {Outcome: failed, Seconds: 6.5, Message: "timed out <here>"},
		set: {Outcome: skipped, Seconds: 0.5, Message: "skipped - needs 3 nodes"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("parseJUnit returns %v, %v\nwant %v", got, err, want)
	}
	again, err := writeJUnit(got, []string{job, more, set})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := parseJUnit(again, []string{job, more, set}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("parseJUnit reads the report of writeJUnit as %v, %v", got, err)
	}
	if _, err := parseJUnit([]byte("<half"), nil); err == nil {
		t.Error("parseJUnit accepts an incomplete report")
	}
}

func TestReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "conformance.json")
	r, err := readReport(file)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{job, more, set, slow}
	r.Tests[job], r.Tests[more], r.Tests[set] = outcome{Outcome: passed}, outcome{Outcome: failed}, outcome{Outcome: skipped}
	r.Tests["of an older version"] = outcome{Outcome: failed}
	r.count(names)
	if err := r.write(file, names); err != nil {
		t.Fatal(err)
	}
	again, err := readReport(file)
	if err != nil || !reflect.DeepEqual(again, r) {
		t.Errorf("read again: %+v, %v\nwritten:    %+v", again, err, r)
	}
	if r.Total != 4 || r.Passed != 1 || r.Failed != 1 || r.Skipped != 1 || r.Left != 1 || !slices.Equal(r.Failures, []string{more}) {
		t.Errorf("the counts of the report are wrong: %+v", r)
	}
	if left := r.left(names); !slices.Equal(left, []string{more, slow}) {
		t.Errorf("left returns %q, want the failed test and the test without an outcome", left)
	}
}

// TestTake checks that take stores the files of /bin and /lib below /usr, stores a hard link as a
// copy of its target, and omits documentation and device files.
func TestTake(t *testing.T) {
	root := ociarchive.Layer{}
	for _, e := range []struct {
		name string
		h    tar.Header
	}{
		{"/", tar.Header{Typeflag: tar.TypeDir, Mode: 0o755}},
		{"/bin", tar.Header{Typeflag: tar.TypeDir, Mode: 0o755}},
		{"/bin/tool", tar.Header{Typeflag: tar.TypeReg, Mode: 0o4755}},
		{"/usr/bin/same", tar.Header{Typeflag: tar.TypeLink, Linkname: "./bin/tool"}},
		{"/lib/x.so", tar.Header{Typeflag: tar.TypeSymlink, Linkname: "x.so.1", Mode: 0o777}},
		{"/usr/share/doc/tool/copyright", tar.Header{Typeflag: tar.TypeReg, Mode: 0o644}},
		{"/dev/null", tar.Header{Typeflag: tar.TypeChar, Mode: 0o666}},
	} {
		if err := take(root, e.name, &e.h, strings.NewReader("content")); err != nil {
			t.Fatal(err)
		}
	}
	tool := ociarchive.File{Mode: fs.ModeSetuid | 0o755, Content: []byte("content")}
	want := ociarchive.Layer{
		"/usr/bin": {Mode: fs.ModeDir | 0o755}, "/usr/bin/tool": tool, "/usr/bin/same": tool,
		"/usr/lib/x.so": {Mode: fs.ModeSymlink | 0o777, Target: "x.so.1"},
	}
	if !reflect.DeepEqual(root, want) {
		t.Errorf("take stores the files %v\nwant %v", root, want)
	}
}

func TestNamed(t *testing.T) {
	recipes := map[string]ociarchive.Image{"agnhost": ociarchive.Program("", "agnhost", nil), "pause": ociarchive.Program("", "pause", nil)}
	list := []string{"r.test/e2e-test-images/agnhost:2", "r.test/e2e-test-images/agnhost:1", "r.test/pause:3", "private.test/with-password/agnhost:2", "r.test/other:1"}
	var got []string
	for _, image := range named(list, recipes) {
		got = append(got, image.Name+" "+image.Config.Entrypoint[0])
	}
	if want := []string{list[0] + " /agnhost", list[1] + " /agnhost", list[2] + " /pause"}; !slices.Equal(got, want) {
		t.Errorf("named returns the images %q, want %q", got, want)
	}
}

// TestClusterPatch checks that the patch can be merged into a configuration.
func TestClusterPatch(t *testing.T) {
	text, err := config.Merge([]byte("kind: Cluster\nspec: {}\n"), []byte(clusterPatch(50)))
	if err != nil || !strings.Contains(string(text), "maxPods: 50") {
		t.Errorf("the merged configuration is %s, %v, want the maximum number of pods in it", text, err)
	}
}
