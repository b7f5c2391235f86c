package debug

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestProfile takes a profile of this process, under the name of the process machined.
func TestProfile(t *testing.T) {
	a, _ := newTools(t)
	text, err := a.Profile(t.Context(), processMachined, "goroutine", 0)
	if err != nil || !bytes.HasPrefix(text, []byte{0x1f, 0x8b}) {
		t.Errorf("the profile is %x, %v; want gzip data", text, err)
	}
	leaving, leave := context.WithCancel(t.Context())
	leave()
	if _, err := a.Profile(leaving, processMachined, "", 0); status.Code(err) != codes.Canceled {
		t.Errorf("a caller that has disconnected: %v", err)
	}
	a.profileMu.Lock()
	for _, c := range []struct {
		process, kind string
		code          codes.Code
		want          string
	}{
		{processMachined, "", codes.ResourceExhausted, "another profile is being taken"},
		{"nope", "", codes.NotFound, `process "nope": has no profiles; processes with profiles: machined`},
		{processMachined, "nope", codes.InvalidArgument, "expected one of cpu, heap"},
	} {
		if _, err := a.Profile(t.Context(), c.process, c.kind, 0); status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.want) {
			t.Errorf("%s %s: %v; want %q", c.process, c.kind, err, c.want)
		}
	}
}
