package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/client"
)

// errCut ends the streams of a cutAudit.
var errCut = errors.New("the connection was cut")

// cutAudit is a machine with a record of changes and a record of rejected calls. If refused is nil,
// the machine sends the record of changes in place of the record of rejected calls, as an older
// version does.
//
// A stream without follow lacks the last line of its record and ends without an error. A stream of
// changes with follow ends with errCut. A stream of rejected calls with follow does not end.
type cutAudit struct {
	api.AuditClient
	changes, refused [][]byte
}

// Read implements api.AuditClient.
func (a cutAudit) Read(ctx context.Context, r *api.ReadAuditRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[api.AuditLine], error) {
	lines := a.changes
	if r.Refused && a.refused != nil {
		lines = a.refused
	}
	s := &auditStream{ctx: ctx, lines: lines[min(int(r.After), len(lines)):], end: io.EOF}
	switch {
	case !r.Follow:
		s.lines = s.lines[:max(len(s.lines)-1, 0)]
	case r.Refused:
		s.end = nil
	default:
		s.end = errCut
	}
	return s, nil
}

// auditStream is a stream that sends lines and then the error end. If end is nil, it waits for the
// end of its context.
type auditStream struct {
	grpc.ClientStream
	ctx   context.Context
	lines [][]byte
	end   error
}

// Recv implements grpc.ServerStreamingClient.
func (s *auditStream) Recv() (*api.AuditLine, error) {
	if len(s.lines) == 0 {
		if s.end == nil {
			<-s.ctx.Done()
			return nil, s.ctx.Err()
		}
		return nil, s.end
	}
	time.Sleep(time.Second) // in a synctest bubble, this waits until all other goroutines wait
	line := s.lines[0]
	s.lines = s.lines[1:]
	return &api.AuditLine{Line: line}, nil
}

// auditLines returns the lines of a record: one for the call of each of these methods.
func auditLines(t *testing.T, record string, methods ...string) [][]byte {
	t.Helper()
	l, err := audit.OpenNamed(t.TempDir(), record, audit.DefaultSize, 2)
	if err != nil {
		t.Fatal(err)
	}
	lines := [][]byte{}
	for _, method := range methods {
		if err := l.Append(time.Now(), audit.Call{Method: method, Status: "OK"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Read(0, func(_ uint64, line []byte) error { lines = append(lines, line); return nil }); err != nil {
		t.Fatal(err)
	}
	return lines
}

// TestAuditOfOneRecord checks `audit list` on a machine that has only the record `changes`, because
// its version is older. The list has each line once, and --follow adds the later lines. A list of
// the record `refused` alone fails, in each output format. The last case is a machine with both
// records.
func TestAuditOfOneRecord(t *testing.T) {
	one := cutAudit{changes: auditLines(t, "", "First", "Second", "Third")}
	two := cutAudit{changes: one.changes, refused: auditLines(t, audit.Refused, "Rejected", "Later")}
	both := []string{"", audit.Refused}
	for name, c := range map[string]struct {
		machine cutAudit
		list    auditList
		format  string
		methods string
		err     error
	}{
		"list":                  {one, auditList{records: both}, "table", "First Second", nil},
		"follow":                {one, auditList{records: both, follow: true}, "table", "First Second Third", errCut},
		"follow, first line":    {cutAudit{changes: one.changes[:1]}, auditList{records: both, follow: true}, "table", "First", errCut},
		"refused":               {one, auditList{records: both[1:]}, "table", "", errNoRefused},
		"refused, as JSON":      {one, auditList{records: both[1:]}, "json", "", errNoRefused},
		"refused, after line 1": {one, auditList{records: both[1:], after: 1, follow: true}, "table", "", errNoRefused},
		"two records":           {two, auditList{records: both}, "table", "First Second Rejected", nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			var out strings.Builder
			c.list.ios = &iostreams.Streams{Out: &out, Format: c.format}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			err := c.list.run(ctx, &client.Client{Audit: c.machine})
			var methods []string
			for line := range strings.Lines(out.String()) {
				for _, method := range []string{"First", "Second", "Third", "Rejected", "Later"} {
					if strings.Contains(line, method) {
						methods = append(methods, method)
					}
				}
			}
			if got := strings.Join(methods, " "); got != c.methods || !errors.Is(err, c.err) {
				t.Errorf("%s: %q, %v; want %q, %v", name, got, err, c.methods, c.err)
			}
		})
	}
}

// TestAuditLine checks the line for an entry that has all fields.
func TestAuditLine(t *testing.T) {
	var out strings.Builder
	l := auditList{ios: &iostreams.Streams{Out: &out, Format: "table"}}
	e := audit.Entry{Number: 7, At: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), Call: audit.Call{
		Subject: "CN=admin", Role: "admin", Peer: "192.0.2.1:40000", Method: "/orlop.v1alpha1.Config/Apply", Target: "no trial",
		Status: "Internal", Reason: "disk full", Approvers: "alice, carol",
	}}
	if err := l.print(auditLine{entry: e}); err != nil {
		t.Fatal(err)
	}
	want := "     7  2026-11-30T12:00:00.000Z  Internal           Config/Apply by CN=admin (admin) from 192.0.2.1:40000, no trial, approved by alice, carol: disk full\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
