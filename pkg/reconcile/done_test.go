package reconcile

import (
	"errors"
	"slices"
	"testing"
)

// TestDone checks that Done omits exactly the operations that failed.
func TestDone(t *testing.T) {
	planned := []string{"host: load a", "host: load a b", "network: link eth1: up", "api: load a"}
	failed := []string{Report{Domain: "host", Op: "load a", Err: errors.New("no: file")}.String(), "network: link eth1: up: cannot do: no such device"}
	if got := Done(planned, failed); !slices.Equal(got, []string{"host: load a b", "api: load a"}) {
		t.Errorf("%q", got)
	}
	if got := Done(planned, nil); !slices.Equal(got, planned) {
		t.Errorf("%q", got)
	}
}
