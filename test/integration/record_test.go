package integration

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/pkg/api"
)

// refusedCallsAtOnce is the number of concurrent calls. It is below apid's limit for each operator.
const refusedCallsAtOnce = 16

// refusedCallsVerb makes N calls as the operator. Each call is to restart a service that does not
// exist, and must fail.
func (s *story) refusedCallsVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 1, "refused-calls N")
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	c := s.client(ts)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), s.lasts(15*time.Minute))
	defer cancel()
	began := time.Now()
	problems := make([]error, refusedCallsAtOnce)
	var callers sync.WaitGroup
	for i := range problems {
		callers.Go(func() {
			for k := i; k < n && problems[i] == nil; k += refusedCallsAtOnce {
				_, err := c.Service.Restart(ctx, &api.RestartServiceRequest{Name: fmt.Sprint("none-", k)})
				if status.Code(err) != codes.NotFound {
					problems[i] = fmt.Errorf("call %d: %w", k, orSucceeded(err))
				}
			}
		})
	}
	callers.Wait()
	ts.Check(errors.Join(problems...))
	s.note("%d calls were refused (%.0fs)", n, s.network.Clock().Since(began).Seconds())
}

// orSucceeded returns err. If err is nil, it returns an error for the unexpected success.
func orSucceeded(err error) error {
	if err == nil {
		return errors.New("the call succeeded")
	}
	return err
}

// cutStreamVerb starts a packet capture on the first link. It cuts the power after the first
// message of the capture. At that time, the audit log has the start of the capture.
func (s *story) cutStreamVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 1, "cut-stream NAME")
	c := s.client(ts)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), s.lasts(5*time.Minute))
	defer cancel()
	stream, err := c.Debug.Capture(ctx, &api.CaptureRequest{Link: "eth0", Duration: durationpb.New(5 * time.Minute)})
	ts.Check(err)
	// The first message is the header of the capture file, or a packet.
	_, err = stream.Recv()
	ts.Check(err)
	s.powercutVerb(ts, false, args)
}
