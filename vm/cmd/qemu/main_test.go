package main

import (
	"errors"
	"slices"
	"testing"
	"time"
)

func TestTestArguments(t *testing.T) {
	got, limit, err := testArguments([]string{"-test.paniconexit0", "-test.testlogfile=/tmp/x", "-test.timeout=2m0s", "-test.run=A", "b"})
	if err != nil || limit != 150*time.Second || !slices.Equal(got, []string{"-test.paniconexit0", "-test.timeout=2m0s", "-test.run=A", "b"}) {
		t.Errorf("%v, %s, %v", got, limit, err)
	}
	if _, limit, err := testArguments(nil); err != nil || limit != 5*time.Minute {
		t.Errorf("no arguments: %s, %v", limit, err)
	}
	if _, _, err := testArguments([]string{"-test.coverprofile=c.out"}); err == nil {
		t.Error("a profile that would be lost was promised")
	}
}

func TestBlankDisks(t *testing.T) {
	if d, err := blankDisks(nil); err != nil || len(d) != 2 || d[0].SizeMiB != 2048 {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := blankDisks([]string{"0"}); err != nil || len(d) != 0 {
		t.Errorf("no disk: %+v, %v", d, err)
	}
	if _, err := blankDisks([]string{"big"}); err == nil {
		t.Error("a size that is no number was accepted")
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"sail"}, {"kernel-test"}, {"status"}, {"capture"}} {
		var status exitStatus
		if err := dispatch(t.Context(), args); !errors.As(err, &status) || status != 2 {
			t.Errorf("%v: %v, expected exit status 2", args, err)
		}
	}
}
