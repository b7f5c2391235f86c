package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/client"
)

// installTimeout bounds an installation, which writes a few hundred megabytes twice. The disk can
// be slow.
const installTimeout = 30 * time.Minute

// installProgress is the value of topic "install" of a machine (machined/install/run.go).
type installProgress struct {
	Phase     string `json:"phase"`
	Disk      string `json:"disk"`
	Reason    string `json:"reason"`
	Operation string `json:"operation"`
	Done      int64  `json:"done"`
	Total     int64  `json:"total"`
}

// errInstalled ends the watch of an installation that has succeeded.
var errInstalled = errors.New("installed")

// awaitInstall shows the progress of an installation until the machine reboots from the disk. It
// connects again after a lost connection, because the installation does not depend on the
// connection.
func awaitInstall(ios *iostreams.Streams, conn *connect.Connector) error {
	endpoint, err := conn.Machine()
	if err != nil {
		return err
	}
	ctx, stop := connect.Interruptible()
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, conn.Timeout(installTimeout))
	defer cancel()
	var last installProgress
	for {
		err := followInstall(ctx, ios, endpoint, &last)
		switch {
		case errors.Is(err, errInstalled):
			return nil
		case ctx.Err() == nil && !exit.IsTemporary(err):
			return err
		case backoff.Sleep(ctx, connect.DialInterval) != nil:
			return &exit.Error{Code: exit.Unhealthy, Err: fmt.Errorf("install: not complete in time; the last operation was %q", last.Operation), Hint: "`orlopctl get install` shows the progress"}
		}
	}
}

// followInstall connects and shows the progress of an installation. It returns errInstalled after
// the end of the installation, and another error if the installation or the connection has failed.
func followInstall(ctx context.Context, ios *iostreams.Streams, endpoint client.Endpoint, last *installProgress) error {
	return connect.Attempt(ctx, endpoint, func(dialing context.Context, c *client.Client) error {
		v, err := c.Machine.Version(dialing, &api.VersionRequest{})
		if err != nil {
			return err
		}
		if v.BootMedium == "" {
			ios.PrintProgress("installed: version " + v.Version + " runs from the disk")
			return errInstalled
		}
		stream, err := c.Machine.Watch(ctx, &api.GetRequest{Topic: "install"})
		if err != nil {
			return err
		}
		return connect.Each(stream.Recv, func(s *api.TopicValue) error {
			text, err := s.Value.MarshalJSON()
			var now installProgress
			if err == nil {
				err = json.Unmarshal(text, &now)
			}
			if err != nil {
				return fmt.Errorf("install: cannot read the machine's answer: %w", err)
			}
			if now.Operation != last.Operation {
				newProgress(ios, "written", last.Total)(last.Total) // clears the progress line
			}
			if now.Operation != last.Operation && now.Operation != "" {
				ios.Errorln(now.Operation)
			}
			if now.Total > 0 {
				newProgress(ios, "written", now.Total)(now.Done)
			}
			before := *last
			*last = now
			switch now.Phase {
			case "installed":
				ios.PrintProgress("installed on " + now.Disk + "; the machine reboots into it")
				return errInstalled
			case "failed":
				return fmt.Errorf("install: %s", now.Reason)
			case "":
				if before.Phase != "" {
					return errors.New("install: the machine booted from its boot medium again before the end of the installation; apply the configuration again")
				}
			}
			return nil
		})
	})
}
