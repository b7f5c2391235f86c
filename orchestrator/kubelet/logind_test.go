package kubelet

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/nodeshutdown/systemd"
)

// TestLogind checks our server of the logind API with the client of the kubelet. The client reads
// the delay, takes an inhibitor lock and receives the signal of a shutdown. The shutdown waits
// until the client releases the lock.
func TestLogind(t *testing.T) {
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "") // newLogind sets it; t.Setenv restores it
	l, err := newLogind(filepath.Join(t.TempDir(), "logind.sock"), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	client, err := systemd.NewDBusCon()
	if err != nil {
		t.Fatal(err)
	}
	if delay, err := client.CurrentInhibitDelay(); err != nil || delay != time.Minute {
		t.Errorf("delay %v, %v", delay, err)
	}
	lock, err := client.InhibitShutdown()
	if err != nil {
		t.Fatal(err)
	}
	events, err := client.MonitorShutdown(klog.Background())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	short, end := context.WithCancel(ctx)
	down := make(chan error, 1)
	go func() { down <- l.shutdown(short) }()
	select {
	case going := <-events:
		if !going {
			t.Error("the client received the signal that the shutdown is canceled")
		}
	case <-ctx.Done():
		t.Fatal("the client received no signal of the shutdown")
	}
	end()
	if err := <-down; err == nil {
		t.Error("the shutdown did not wait for the lock")
	}
	if err := client.ReleaseInhibitLock(lock); err != nil {
		t.Fatal(err)
	}
	if err := l.shutdown(ctx); err != nil {
		t.Errorf("shutdown after the release of the lock: %v", err)
	}
	if err := client.ReloadLogindConf(); err == nil {
		t.Error("the server answers a call that it does not implement")
	}
}
