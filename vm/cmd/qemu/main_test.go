package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestTestArguments checks the arguments for the test binary in the machine, and the limit of each
// of its two runs.
func TestTestArguments(t *testing.T) {
	got, limit, err := testArguments([]string{"-test.paniconexit0", "-test.testlogfile=/tmp/x", "-test.timeout=20m0s", "-test.run=A", "b"})
	if err != nil || limit != 10*time.Minute || !slices.Equal(got, []string{"-test.paniconexit0", "-test.timeout=9m0s", "-test.run=A", "b"}) {
		t.Errorf("testArguments returns %v, %s, %v", got, limit, err)
	}
	if got, limit, err := testArguments([]string{"-test.timeout=0s"}); err != nil || limit != 5*time.Minute || !slices.Equal(got, []string{"-test.timeout=0s"}) {
		t.Errorf("testArguments without a timeout returns %v, %s, %v", got, limit, err)
	}
	if _, limit, err := testArguments(nil); err != nil || limit != 5*time.Minute {
		t.Errorf("testArguments without arguments returns the limit %s, %v", limit, err)
	}
	if _, _, err := testArguments([]string{"-test.coverprofile=c.out"}); err == nil {
		t.Error("testArguments accepts -test.coverprofile, although the guest's files are lost")
	}
}

func TestNote(t *testing.T) {
	file := filepath.Join(t.TempDir(), "repeats")
	note(file, "disk.test: the program runs again")
	note(file, "host.test: the machine boots again")
	if got, err := os.ReadFile(file); err != nil || string(got) != "disk.test: the program runs again\nhost.test: the machine boots again\n" {
		t.Errorf("the file has %q, %v, want both texts", got, err)
	}
}

func TestBlankDisks(t *testing.T) {
	if d, err := blankDisks(nil); err != nil || len(d) != 2 || d[0].SizeMiB != 2048 {
		t.Errorf("blankDisks without sizes returns %+v, %v, want two disks of 2048 MiB", d, err)
	}
	if d, err := blankDisks([]string{"0"}); err != nil || len(d) != 0 {
		t.Errorf("blankDisks with the size 0 returns %+v, %v, want no disk", d, err)
	}
	if _, err := blankDisks([]string{"big"}); err == nil {
		t.Error("blankDisks accepts a size that is not a number")
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"sail"}, {"kernel-test"}, {"status"}, {"capture"}} {
		var status exitStatus
		if err := dispatch(t.Context(), args); !errors.As(err, &status) || status != 2 {
			t.Errorf("dispatch with the arguments %v returns %v, want exit status 2", args, err)
		}
	}
}
