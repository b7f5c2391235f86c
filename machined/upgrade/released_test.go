package upgrade

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/test/releasedtest"
)

// TestReleasedRecords reads the files that version 0.1.0 has written in each phase of an upgrade:
// the record, and the configuration and log of a version on trial. Files that the present version
// writes must be identical.
func TestReleasedRecords(t *testing.T) {
	for dir, phase := range map[string]slot.Phase{
		"writing": slot.Writing, "written": slot.Written, "trial": slot.Trial,
		"committed": slot.Committed, "rolled-back": slot.RolledBack, "failed": slot.Failed,
	} {
		was, is := Store{Dir: releasedtest.Copy(t, dir)}, Store{Dir: filepath.Join(t.TempDir(), "present")}
		r, err := was.Load()
		if err != nil || r.Phase != phase || r.From != "0.1.0" || r.Started.IsZero() {
			t.Errorf("%s: the record is %+v, %v", dir, r, err)
		}
		if err := is.Save(r); err != nil {
			t.Fatal(err)
		}
		if configuration, err := was.SavedConfiguration("0.1.0"); err != nil || (configuration != nil) != (phase == slot.Trial) {
			t.Errorf("%s: the configuration is %q, %v", dir, configuration, err)
		} else if configuration != nil {
			if err := errors.Join(is.SaveConfiguration("0.1.0", configuration), is.SaveLog(was.SavedLog())); err != nil {
				t.Fatal(err)
			}
		}
		releasedtest.Compare(t, dir, is.Dir)
	}
}

// TestReleasedInbox checks that the present version continues an upload that version 0.1.0 has
// begun.
func TestReleasedInbox(t *testing.T) {
	in := Inbox{Dir: releasedtest.Copy(t, "inbox"), Free: func(string) (int64, error) { return 1 << 40, nil }, StallTimeout: time.Minute}
	b, err := in.Bundle()
	if err != nil || b.Have != 300 {
		t.Fatalf("the bundle in the inbox is %+v, %v", b, err)
	}
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	releasedtest.CompareFile(t, "inbox/bundle.json", text)
	if b, err = in.Offer(b.SHA256, b.Size); err != nil || b.Have != 300 {
		t.Fatalf("after the offer, the bundle is %+v, %v", b, err)
	}
	// The digest of the offer does not match the content, so Receive ends with a Refusal.
	rest := bytes.NewReader([]byte(strings.Repeat("orlop", 40)))
	err = in.Receive(t.Context(), rest, func(io.Reader) error { return nil }, func(int64) {})
	if want := "has SHA-256 "; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the continued upload: %v, want a wrong digest", err)
	}
	if all, err := os.ReadFile(in.file()); err != nil || string(all) != strings.Repeat("orlop", 100) {
		t.Errorf("the file of the bundle has %q, %v", all, err)
	}
}
