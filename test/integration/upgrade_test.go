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
	events, err := c.Machine.Events(ctx, &api.EventsRequest{Follow: true})
	ts.Check(err)
	stream, err := c.Upgrade.Start(ctx)
	ts.Check(err)
	sent := make(chan error, 1)
	go func() {
		err := sendAll(stream, file)
		if err != nil {
			cancel() // it will not come to any operation
		}
		sent <- err
	}()
	begun, doing := time.Now(), ""
	for !strings.HasPrefix(doing, args[2]) {
		e, err := events.Recv()
		if err != nil {
			ts.Fatalf("cut-upgrade: %q did not come, only %q: %v; the upgrade: %v", args[2], doing, err, <-sent)
		}
		if e.Source == "upgrade" && e.Kind == "op" {
			doing = e.Message
		}
	}
	s.machine(ts, args[0]).PowerCut()
	cancel()
	<-sent
	s.note("power of %s is cut after %.1fs, while it does: %s", args[0], time.Since(begun).Seconds(), doing)
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
