package integration

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/pki"
)

// This file has the verbs for failures. verbs_test.go lists and describes all verbs.

func onOff(ts *testscript.TestScript, neg bool, args []string, verb string) bool {
	need(ts, neg, args, 1, 1, verb+" on|off")
	if args[0] != "on" && args[0] != "off" {
		ts.Fatalf("usage: %s on|off", verb)
	}
	return args[0] == "on"
}

func (s *story) dhcpVerb(ts *testscript.TestScript, neg bool, args []string) {
	s.network.SetDHCP(onOff(ts, neg, args, "dhcp"))
	s.note("the DHCP server is %s", args[0])
}

func (s *story) ntpVerb(ts *testscript.TestScript, neg bool, args []string) {
	s.network.SetNTP(onOff(ts, neg, args, "ntp"))
	s.note("the NTP server is %s", args[0])
}

func (s *story) exitsVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, -1, "exits STATUS[|STATUS...] orlopctl ARGS")
	if args[1] != "orlopctl" {
		ts.Fatalf("exits: only orlopctl documents its exit status")
	}
	began, got := time.Now(), 0
	err := ts.Exec(filepath.Join(s.tools, "orlopctl"), args[2:]...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("orlopctl: %v", err)
	}
	s.note("%s: exit status %d (%.1fs)", strings.Join(args[1:], " "), got, time.Since(began).Seconds())
	if !slices.Contains(strings.Split(args[0], "|"), strconv.Itoa(got)) {
		ts.Fatalf("orlopctl ended with status %d, want %s", got, args[0])
	}
}

func (s *story) awaitVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, false, args, 4, -1, "[!] await DEADLINE REGEXP orlopctl|kubectl ARGS")
	if args[2] != "orlopctl" && args[2] != "kubectl" {
		ts.Fatalf("await: the command must be orlopctl or kubectl, not %s", args[2])
	}
	re, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	err = until(s.lasts(deadlineOf(ts, args[0])), func() error {
		if err := ts.Exec(filepath.Join(s.tools, args[2]), args[3:]...); err != nil {
			return err
		}
		if out := ts.ReadFile("stdout"); re.MatchString(out) == neg {
			return fmt.Errorf("the output matches %q: %t; the output is\n%s", args[1], neg, out)
		}
		return nil
	})
	s.note("%s prints %s: %t", strings.Join(args[2:], " "), args[1], neg == (err != nil))
	if err != nil {
		ts.Fatalf("await: %s does not have the expected output within %s: %v", args[2], args[0], err)
	}
}

func (s *story) refusesVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, 2, "refuses NAME FILE")
	if s.current != args[0] {
		ts.Fatalf("refuses: orlopctl talks to %q; use fingerprint or trust first", s.current)
	}
	c := s.client(ts)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := c.Config.Apply(ctx, &api.ApplyRequest{Documents: []byte(ts.ReadFile(args[1])), Filename: args[1]})
	answer := status.Convert(err)
	s.note("machine %s on %s: %s", args[0], args[1], answer.Code())
	if answer.Code() != codes.InvalidArgument {
		ts.Fatalf("the machine's answer to %s is %v, want %s", args[1], err, codes.InvalidArgument)
	}
	problems := 0
	for _, d := range answer.Details() {
		if p, ok := d.(*api.Problem); ok && p.File != "" && p.Line > 0 && p.Reason != "" {
			problems++
		}
	}
	if problems == 0 {
		ts.Fatalf("the machine's answer has no machine-readable problem with file, line and reason: %v", answer.Details())
	}
	_, err = fmt.Fprintln(ts.Stdout(), answer.Message())
	ts.Check(err)
}

func (s *story) expiredVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 1, "expired DIR")
	leaf, err := operatorCA(ts).Issue(pki.Spec{
		CN: "late", O: []string{pki.RoleAdmin}, Usage: pki.Client,
		Now: time.Now().Add(-48 * time.Hour), TTL: 24 * time.Hour, Backdate: time.Minute,
	})
	ts.Check(err)
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o700))
	ts.Check(os.WriteFile(filepath.Join(dir, "client.crt"), leaf.CertPEM(), 0o600))
	ts.Check(os.WriteFile(filepath.Join(dir, "client.key"), leaf.KeyPEM(), 0o600))
}

// operatorCA returns the operator CA that the image trusts.
func operatorCA(ts *testscript.TestScript) *pki.CA {
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(*operator, name))
		ts.Check(err)
		return text
	}
	ca, err := pki.ParseCA(read("ca.crt"), read("ca.key"))
	ts.Check(err)
	return ca
}

func (s *story) buttonVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 1, "button NAME")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ts.Check(s.machine(ts, args[0]).PowerButton(ctx))
	s.note("the power button of %s is pressed", args[0])
}

func (s *story) unchangedVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 1, "unchanged NAME")
	m := s.machine(ts, args[0])
	for _, d := range m.Spec().Disks {
		before := sha256.Sum256(nil)
		if d.Image != "" {
			var err error
			before, err = contentOf(d.Image)
			ts.Check(err)
		}
		now, err := contentOf(m.DiskPath(d.Name))
		ts.Check(err)
		if before != now {
			ts.Fatalf("machine %s has written to its disk %s", args[0], d.Name)
		}
		s.note("the disk %s of %s is unchanged", d.Name, args[0])
	}
}

// contentOf returns a hash of all blocks of a file that are not zero, and of their positions. Holes
// and zeros at the end of the file do not change the hash.
func contentOf(file string) ([sha256.Size]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return [sha256.Size]byte{}, err
	}
	defer f.Close()
	const block = 64 << 10
	sum, buffer, zero := sha256.New(), make([]byte, block), [block]byte{}
	for at := int64(0); ; {
		data, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // no data after this position
			return [sha256.Size]byte(sum.Sum(nil)), nil
		}
		if err != nil {
			return [sha256.Size]byte{}, fmt.Errorf("%s: cannot look for data: %w", file, err)
		}
		at = data / block * block
		n, err := f.ReadAt(buffer, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return [sha256.Size]byte{}, err
		}
		clear(buffer[n:])
		if [block]byte(buffer) != zero {
			binary.Write(sum, binary.LittleEndian, at) // a hash returns no error
			sum.Write(buffer)
		}
		at += block
	}
}
