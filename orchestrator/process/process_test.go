package process

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/service/notify"
)

// quietly ignores an announcement.
func quietly(string, bool, string) {}

// TestStopsInReverseOrder checks that Run stops the components in the reverse order of their start.
func TestStopsInReverseOrder(t *testing.T) {
	var mu sync.Mutex
	var order []string
	waits := func(name string) component.Component {
		return component.Component{Name: name, Run: func(ctx context.Context, _ component.Announce) error {
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
			return nil
		}}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Run(ctx, []component.Component{waits("etcd"), waits("kube-apiserver"), waits("bootstrap")}, quietly); err != nil {
		t.Fatal(err)
	}
	if want := []string{"bootstrap", "kube-apiserver", "etcd"}; !slices.Equal(order, want) {
		t.Errorf("stopped in the order %v, want %v", order, want)
	}
}

// TestEndedComponentEndsProcess checks that Run returns an error as soon as one component ends,
// even if another component never ends.
func TestEndedComponentEndsProcess(t *testing.T) {
	forever := component.Component{Name: "etcd", Run: func(context.Context, component.Announce) error { select {} }}
	for _, tc := range []struct {
		err  error
		want string
	}{
		{errors.New("disk is full"), "kube-apiserver ended: disk is full"},
		{nil, "kube-apiserver ended by itself without an error"},
	} {
		ends := component.Component{Name: "kube-apiserver", Run: func(context.Context, component.Announce) error { return tc.err }}
		err := Run(context.Background(), []component.Component{forever, ends}, quietly)
		if err == nil || err.Error() != tc.want {
			t.Errorf("%v, want %s", err, tc.want)
		}
	}
}

// TestFilesExistBeforeRun checks that Run writes the files of a component before it runs the
// component.
func TestFilesExistBeforeRun(t *testing.T) {
	file := component.File{Path: filepath.Join(t.TempDir(), "a", "b.yaml"), Mode: 0o600, Content: "x"}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	reads := component.Component{Name: "reads", Files: []component.File{file}, Run: func(context.Context, component.Announce) error {
		content, err := os.ReadFile(file.Path)
		if err == nil && string(content) == "x" {
			err = errors.New("good")
		}
		return err
	}}
	if err := Run(ctx, []component.Component{reads}, quietly); err == nil || err.Error() != "reads ended: good" {
		t.Fatal(err)
	}
	if info, err := os.Stat(file.Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
}

// TestAnnouncerSettles checks that the announcer calls its function once, when all components are
// ready.
func TestAnnouncerSettles(t *testing.T) {
	var pipe bytes.Buffer
	settled := 0
	announce := Announcer(notify.NewWriter(&pipe), []component.Component{{Name: "a"}, {Name: "b"}}, func() { settled++ })
	announce("a", true, "")
	if settled != 0 {
		t.Error("the announcer reports that all components are ready while b is starting")
	}
	announce("b", true, "")
	if settled != 1 {
		t.Errorf("the announcer reported %d times that all components are ready, want once", settled)
	}
	if lines := strings.Count(pipe.String(), "\n"); lines != 4 {
		t.Errorf("%d lines, want one for each start and each readiness:\n%s", lines, pipe.String())
	}
}

func TestTarget(t *testing.T) {
	for _, tc := range []struct {
		percent int
		since   time.Duration
		want    int
	}{
		{lean, time.Second, 2 * lean},
		{busy, time.Second, busy},
		{80, time.Second, busy},
		{busy, time.Minute, busy / 2},
		{lean, time.Minute, lean},
		{40, 10 * time.Second, 40},
	} {
		if got := target(tc.percent, tc.since); got != tc.want {
			t.Errorf("after %s at %d %%: %d %%, want %d %%", tc.since, tc.percent, got, tc.want)
		}
	}
}
