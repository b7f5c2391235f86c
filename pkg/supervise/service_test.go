package supervise

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestValidate(t *testing.T) {
	ok := []string{"/bin/x"}
	for _, c := range []struct {
		name     string
		services []Service
		want     string // a part of the error; empty for no error
	}{
		{"valid", []Service{{Name: "a", Process: Spec{Args: ok}}, {Name: "b", Process: Spec{Args: ok}, DependsOn: []string{"a"}}}, ""},
		{"no name", []Service{{Process: Spec{Args: ok}}}, "needs a name"},
		{"a slash in the name", []Service{{Name: "a/b", Process: Spec{Args: ok}}}, "needs a name"},
		{"the same name twice", []Service{{Name: "a", Process: Spec{Args: ok}}, {Name: "a", Process: Spec{Args: ok}}}, "there twice"},
		{"relative program", []Service{{Name: "a", Process: Spec{Args: []string{"x"}}}}, "absolute path"},
		{"relative group", []Service{{Name: "a", Process: Spec{Args: ok}, Cgroup: "x"}}, "begins with a slash"},
		{"unknown dependency", []Service{{Name: "a", Process: Spec{Args: ok}, DependsOn: []string{"b"}}}, `needs "b", which does not exist`},
		{"cycle of dependencies", []Service{{Name: "a", Process: Spec{Args: ok}, DependsOn: []string{"b"}}, {Name: "b", Process: Spec{Args: ok}, DependsOn: []string{"a"}}}, "a → b → a"},
		{"two probes", []Service{{Name: "a", Process: Spec{Args: ok}, Ready: Probe{Notify: true, TCP: "x"}}}, "more than one way"},
	} {
		err := Validate(c.services)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
	}
}

func TestDiff(t *testing.T) {
	have := []Service{{Name: "same"}, {Name: "default"}, {Name: "changed"}, {Name: "gone"}}
	want := []Service{{Name: "new"}, {Name: "same"}, {Name: "default", GracePeriod: 10 * time.Second}, {Name: "changed", Process: Spec{Nice: 1}}}
	if got := fmt.Sprint(Diff(have, want)); got != "[stop service gone restart service changed start service new]" {
		t.Error(got)
	}
	if got := Diff(want, want); len(got) != 0 {
		t.Errorf("%v; want nothing", got)
	}
}
