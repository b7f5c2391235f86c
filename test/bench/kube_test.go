package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func node(status core.ConditionStatus) *core.Node {
	return &core.Node{Status: core.NodeStatus{Conditions: []core.NodeCondition{{Type: core.NodeReady, Status: status}}}}
}

// TestUntil checks that until() starts another watch after a watch was rejected, and after a watch
// has ended. until() ignores an event of an object that is no Node.
func TestUntil(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	begun := 0
	_, err := until(ctx, func() (watch.Interface, error) {
		w := watch.NewFakeWithChanSize(3, false)
		switch begun++; begun {
		case 1:
			return nil, errors.New("forbidden")
		case 2:
			w.Error(&meta.Status{Reason: meta.StatusReasonExpired})
			w.Stop()
		default:
			w.Add(node(core.ConditionFalse))
			w.Modify(node(core.ConditionTrue))
		}
		return w, nil
	}, nodeReady)
	if err != nil || begun != 3 {
		t.Errorf("%d watches, %v", begun, err)
	}
}

// TestUntilRefused checks that until() returns at its deadline if every watch is rejected. The
// error contains the reason of the last rejection.
func TestUntilRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*retryPause)
		defer cancel()
		refused := errors.New("forbidden")
		if _, err := until(ctx, func() (watch.Interface, error) { return nil, refused }, nodeReady); !errors.Is(err, refused) || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestPodRunning(t *testing.T) {
	for phase, want := range map[core.PodPhase]bool{core.PodPending: false, core.PodRunning: true} {
		if got := podRunning(watch.Event{Object: &core.Pod{Status: core.PodStatus{Phase: phase}}}); got != want {
			t.Errorf("phase %s: %v", phase, got)
		}
	}
}

func TestCreatePod(t *testing.T) {
	kube := fake.NewClientset()
	refusals := 2
	kube.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		refusals--
		return refusals >= 0, nil, errors.New("no service account")
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := createPod(ctx, kube); err != nil {
		t.Fatal(err)
	}
	pod, err := kube.CoreV1().Pods("default").Get(ctx, podName, meta.GetOptions{})
	if err != nil || pod.Spec.Containers[0].Image != imageName {
		t.Errorf("the pod: %+v, %v", pod, err)
	}
}
