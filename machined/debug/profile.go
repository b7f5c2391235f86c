package debug

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/service/profile"
)

// processMachined is the name of this process for profiles.
const processMachined = "machined"

// Profile takes a profile of a process (package profile): of this process, or of a service that is
// a program of the system.
func (t *Tools) Profile(ctx context.Context, process, kind string, duration time.Duration) ([]byte, error) {
	request, err := profile.Parse(kind, duration)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	take, err := t.profileOf(process)
	if err != nil {
		return nil, err
	}
	if !t.profileMu.TryLock() {
		return nil, status.Error(codes.ResourceExhausted, "another profile is being taken; try again when it is done")
	}
	defer t.profileMu.Unlock()
	text, err := take(ctx, request)
	if ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "process %s: cannot take a profile: %v", process, err)
	}
	return text, nil
}

// profileOf returns the function that takes a profile of a process.
func (t *Tools) profileOf(process string) (func(context.Context, profile.Request) ([]byte, error), error) {
	if process == processMachined {
		return profile.Profile, nil
	}
	names := []string{processMachined}
	for _, s := range t.deps.Services() {
		switch {
		case s.Profile == "" && s.Name == process:
			return nil, status.Errorf(codes.FailedPrecondition, "process %s: cannot take a profile: it is not a program of Orlop OS", process)
		case s.Profile == "":
			continue
		case s.Name == process:
			return func(ctx context.Context, o profile.Request) ([]byte, error) { return profile.Fetch(ctx, s.Profile, o) }, nil
		}
		names = append(names, s.Name)
	}
	slices.Sort(names)
	return nil, status.Errorf(codes.NotFound, "process %q: has no profiles; processes with profiles: %s", process, strings.Join(names, ", "))
}
