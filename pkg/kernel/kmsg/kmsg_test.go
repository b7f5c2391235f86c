package kmsg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		data string
		want Record
	}{
		{"6,339,5140900,-;NET: Registered PF_INET6\n", Record{6, 0, 339, 5140900 * time.Microsecond, "NET: Registered PF_INET6"}},
		{"4,1,0,-;a;b\n SUBSYSTEM=pci\n DEVICE=+pci:0000\n", Record{4, 0, 1, 0, "a;b"}},
		{"30,2,7,c,caller=T1;orlop: up\\x0adown\n", Record{6, 3, 2, 7 * time.Microsecond, "orlop: up\ndown"}},
	} {
		if got, err := Parse(c.data); got != c.want || err != nil {
			t.Errorf("%q: %+v, %v; want %+v", c.data, got, err, c.want)
		}
	}
	for _, bad := range []string{"", ";", "1,2;x", "a,1,2,-;x", "1,-1,2,-;x", "text"} {
		if r, err := Parse(bad); err == nil {
			t.Errorf("Parse(%q) = %+v, want an error", bad, r)
		}
	}
}

// TestKernelLog writes to the kernel log of this machine and reads it back.
func TestKernelLog(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to read and write the kernel's log")
	}
	w, err := os.OpenFile(Device, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	const daemon = 3 // LOG_DAEMON (syslog(3))
	write := func(priority int, text string) error {
		_, err := fmt.Fprintf(w, "<%d>%s\n", daemon<<3|priority, text)
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	mark := fmt.Sprintf("test %d of pkg/kernel/kmsg", time.Now().UnixNano())
	if err := write(5, mark); err != nil {
		t.Fatal(err)
	}
	records, err := Tail(0)
	if err != nil {
		t.Fatal(err)
	}
	var found Record
	for _, r := range records {
		if strings.Contains(r.Text, mark) {
			found = r
		}
	}
	if found.Text != mark || found.Priority != 5 || found.Facility != daemon {
		t.Fatalf("%+v among %d records", found, len(records))
	}
	done := errors.New("done")
	count := 0
	err = Follow(ctx, 1, func(r Record) error {
		if count++; count == 1 {
			if r.Seq < found.Seq {
				t.Errorf("Follow(1) begins with record %d; want %d or later", r.Seq, found.Seq)
			}
			return write(6, mark+" again")
		}
		if strings.Contains(r.Text, mark+" again") {
			return done
		}
		return nil
	})
	if !errors.Is(err, done) {
		t.Fatal(err)
	}
	cancel()
	if err := Follow(ctx, 0, func(Record) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("Follow ended with %v; want the context's error", err)
	}
}
