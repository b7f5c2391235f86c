package main

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
)

// TestKeptKernelLog: a log that was kept does not go on, and is one of two.
func TestKeptKernelLog(t *testing.T) {
	a := logAPI{m: &machine{}}
	for _, r := range []*api.KernelLogRequest{{Before: true, Follow: true}, {Crash: true, Follow: true}, {Before: true, Crash: true}} {
		if err := a.Kernel(r, nil); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", r, err)
		}
	}
}

// TestEndKernelLog: going down waits for the end of the log, and not for ever.
func TestEndKernelLog(t *testing.T) {
	m := &machine{}
	m.endKernelLog(t.Context()) // there is none
	ctx, stop := context.WithCancel(t.Context())
	k := &keeper{stop: stop, ended: make(chan struct{})}
	m.kernelLog.Store(k)
	late, leave := context.WithCancel(t.Context())
	leave()
	m.endKernelLog(late)
	if ctx.Err() == nil {
		t.Error("it was not told to end")
	}
	close(k.ended)
	m.endKernelLog(t.Context())
}
