package api

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
)

// TestApply checks the codes of a rejected configuration, the details of its problems, and that
// only a dry run is marked as a call without a change.
func TestApply(t *testing.T) {
	var fails error
	var filename string
	s := configService{
		deps: ConfigDeps{Apply: func(_ context.Context, name string, _ *api.ApplyRequest) (*api.ApplyResponse, error) {
			filename = name
			return &api.ApplyResponse{}, fails
		}},
	}
	for _, c := range []struct {
		what      string
		r         *api.ApplyRequest
		fails     error
		code      codes.Code
		unchanged bool
	}{
		{"a change", &api.ApplyRequest{}, nil, codes.OK, false},
		{"a dry run", &api.ApplyRequest{Mode: api.ApplyRequest_MODE_DRY_RUN}, nil, codes.OK, true},
		{"too large", &api.ApplyRequest{Documents: make([]byte, maxDocuments+1)}, nil, codes.InvalidArgument, false},
		{"impossible", &api.ApplyRequest{}, errors.New("not now"), codes.FailedPrecondition, false},
		{"with a problem", &api.ApplyRequest{}, config.Problems{{File: "a.yaml", Line: 3, Field: "Machine.spec.role", Reason: "is missing"}}, codes.InvalidArgument, false},
	} {
		fails = c.fails
		call := &recordedCall{}
		_, err := s.Apply(context.WithValue(t.Context(), recordedCallKey{}, call), c.r)
		if unchanged := call.unchanged.Load(); status.Code(err) != c.code || unchanged != c.unchanged {
			t.Errorf("%s: %v, unchanged %t", c.what, err, unchanged)
		}
		if _, problems := c.fails.(config.Problems); !problems {
			continue
		}
		details := status.Convert(err).Details()
		if len(details) != 1 || details[0].(*api.Problem).Line != 3 || !strings.HasPrefix(status.Convert(err).Message(), config.Refused+"\n") {
			t.Errorf("%s: %v with details %v", c.what, err, details)
		}
	}
	if filename != "-" {
		t.Errorf("documents without a name have the name %q", filename)
	}
}
