package integration

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/orlop-os/orlop/pkg/api"
)

// deadlineVerb says in the Machine document how long a new version may take to prove itself.
func (s *story) deadlineVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, 2, "deadline DOCUMENTS DURATION")
	edit(ts, args[0], "Machine", func(document map[string]any) {
		spec, _ := document["spec"].(map[string]any)
		spec["upgrade"] = map[string]any{"deadline": args[1]}
	})
}

// cutVerb sends an upgrade bundle and cuts the power while the machine does an operation of it (machined/upgrade names them).
func (s *story) cutVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, 3, "cut-upgrade NAME BUNDLE OPERATION")
	file, err := os.Open(ts.MkAbs(args[1]))
	ts.Check(err)
	defer file.Close()
	c := s.client(ts)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	stream, err := c.Upgrade.Start(ctx)
	ts.Check(err)
	sent := make(chan error, 1)
	go func() { sent <- sendAll(stream, file) }()
	last := ""
	err = until(4*time.Minute, func() error {
		select {
		case err := <-sent:
			sent <- err
			if err != nil {
				return nil // told below
			}
		default:
		}
		now, err := c.Upgrade.Status(ctx, &api.UpgradeStatusRequest{})
		if err != nil {
			return err
		}
		if last = now.Operation; strings.HasPrefix(last, args[2]) {
			return nil
		}
		return errors.New("it does " + last)
	})
	s.machine(ts, args[0]).PowerCut()
	cancel()
	<-sent
	if err != nil || !strings.HasPrefix(last, args[2]) {
		ts.Fatalf("cut-upgrade: %q did not come: %v", args[2], err)
	}
	s.note("power of %s is cut while it does: %s", args[0], last)
}

func sendAll(stream api.Upgrade_StartClient, file io.Reader) error {
	chunk := make([]byte, 1<<20)
	for {
		n, err := file.Read(chunk)
		if n > 0 {
			if err := stream.Send(&api.StartUpgradeRequest{Chunk: chunk[:n]}); err != nil {
				_, err = stream.CloseAndRecv()
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			_, err := stream.CloseAndRecv()
			return err
		}
		if err != nil {
			return err
		}
	}
}
