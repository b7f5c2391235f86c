package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/paths"
)

// askLimit is the deadline of one request to the Kubernetes API, which can be unreachable.
const askLimit = time.Second

// upgradeMachine boots a machine, waits until its node is Ready, and measures an upgrade.
func upgradeMachine(ctx context.Context, o options, s system, dir string) (f upgradeFigures, err error) {
	b := newBoot(o, s, dir)
	b.goesOn = true
	err = b.whileOn(ctx, func(ctx context.Context, documents []byte) error {
		if _, _, err := b.configure(ctx, documents); err != nil {
			return err
		}
		f, err = b.upgrade(ctx)
		return err
	})
	return f, err
}

func (b *boot) upgrade(ctx context.Context) (upgradeFigures, error) {
	// The client uses HTTP/1.1, because with HTTP/1.1 a call that times out closes its connection.
	// The reset of the machine does not close the connection.
	kube, err := b.kubernetes(ctx, func(c *rest.Config) { c.NextProtos, c.Timeout = []string{"http/1.1"}, askLimit })
	if err != nil {
		return upgradeFigures{}, err
	}
	first, err := observe(ctx, kube, "")
	if err != nil {
		return upgradeFigures{}, err
	}
	info, err := os.Stat(b.bundle)
	if err != nil {
		return upgradeFigures{}, fmt.Errorf("bundle: %w; `make versions` makes it", err)
	}
	forward, err := b.network.Forward(0, fmt.Sprintf("%s:%d", address, paths.PortApid))
	if err != nil {
		return upgradeFigures{}, err
	}
	defer forward.Close()
	before, err := b.machine.Written(ctx)
	if err != nil {
		return upgradeFigures{}, err
	}
	began := time.Now()
	ended := make(chan error, 1)
	go func() {
		args := []string{"upgrade", "-f", b.bundle, "--endpoint", forward.Addr, "--fingerprint", b.pinned.Fingerprint,
			"--cert", filepath.Join(b.operator, "admin.crt"), "--key", filepath.Join(b.operator, "admin.key")}
		out, err := exec.CommandContext(ctx, filepath.Join(b.bin, "orlopctl"), args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("upgrade: %w: %s", err, out)
		}
		ended <- err
	}()
	seen, err := observe(ctx, kube, first.boot)
	if err != nil {
		return upgradeFigures{}, err
	}
	if err := <-ended; err != nil { // CommandContext ends orlopctl when ctx ends
		return upgradeFigures{}, err
	}
	committed := time.Now()
	after, err := b.machine.Written(ctx)
	if err != nil {
		return upgradeFigures{}, err
	}
	for _, e := range b.machine.Events() {
		if e.Name == "RESET" && e.At.After(began) {
			return newUpgradeFigures(began, e.At, seen.ready, committed, seen.away, after-before, info.Size()), nil
		}
	}
	return upgradeFigures{}, errors.New("upgrade: QEMU reports no reset")
}

func newUpgradeFigures(began, reset, ready, ended time.Time, away time.Duration, written, bundle int64) upgradeFigures {
	seconds := func(d time.Duration) *float64 { s := d.Seconds(); return &s }
	size := func(n int64) *float64 { s := float64(n) / mib; return &s }
	return upgradeFigures{
		Upgrade: seconds(ended.Sub(began)), UpgradeToReset: seconds(reset.Sub(began)), ResetToReady: seconds(ready.Sub(reset)),
		UpgradeOutage: seconds(away), UpgradeWrittenMiB: size(written), BundleMiB: size(bundle),
	}
}

// observed holds the observations of a client of the Kubernetes API.
type observed struct {
	ready time.Time     // time at which the node was Ready
	boot  string        // ID of the machine's boot at that time
	away  time.Duration // the longest time between two successful answers
}

// observe polls the Kubernetes API until the node is Ready and its boot ID differs from previous.
func observe(ctx context.Context, kube kubernetes.Interface, previous string) (observed, error) {
	var out observed
	for last := time.Now(); ; {
		_, err := kube.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if now := time.Now(); err == nil {
			out.away, last = max(out.away, now.Sub(last)), now
			var n *core.Node
			if n, err = kube.CoreV1().Nodes().Get(ctx, machineName, meta.GetOptions{}); err == nil && isReady(n) && n.Status.NodeInfo.BootID != previous {
				out.ready, out.boot = time.Now(), n.Status.NodeInfo.BootID
				return out, nil
			}
		}
		if end := backoff.Sleep(ctx, retryPause); end != nil {
			return out, fmt.Errorf("node: not Ready: %w", errors.Join(end, err))
		}
	}
}
