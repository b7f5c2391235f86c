package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
)

// imageName is the image of the pod. It contains the web server of the stories and is two to three
// times the size of the baseline's busybox image.
const imageName = "test.orlop.dev/bench:1"

// podName is the name of the pod. The baseline's pod.yaml describes an equal pod.
const podName = "hello"

// retryPause is the interval between two attempts to create an object or to start a watch.
const retryPause = 100 * time.Millisecond

// watchPod returns two times: when a client of the Kubernetes API received the node's condition
// Ready, and when it received the phase Running of a pod. The client creates the pod as soon as the
// node is Ready. Both times are of the local clock at the delivery of the watch event.
func (b *boot) watchPod(ctx context.Context, podImage string) (node, pod time.Time, err error) {
	imported := make(chan error, 1)
	go func() { imported <- b.importImage(ctx, podImage) }()
	kube, err := b.kubernetes(ctx, func(*rest.Config) {})
	if err != nil {
		return node, pod, err
	}
	if err := b.record.wait(ctx, "orchestrator-api/kube-apiserver"); err != nil {
		return node, pod, err
	}
	selected := meta.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", machineName).String()}
	node, err = until(ctx, func() (watch.Interface, error) { return kube.CoreV1().Nodes().Watch(ctx, selected) }, nodeReady)
	if err != nil {
		return node, pod, fmt.Errorf("node: not Ready: %w", err)
	}
	select {
	case err = <-imported:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return node, pod, err
	}
	if err := createPod(ctx, kube); err != nil {
		return node, pod, err
	}
	selected.FieldSelector = fields.OneTermEqualSelector("metadata.name", podName).String()
	pod, err = until(ctx, func() (watch.Interface, error) { return kube.CoreV1().Pods("default").Watch(ctx, selected) }, podRunning)
	if err != nil {
		return node, pod, fmt.Errorf("pod: not Running: %w", err)
	}
	return node, pod, nil
}

// kubernetes requests a kubeconfig from the machine and returns a client that uses it through the
// closed network. The function tune can change the configuration of the client.
func (b *boot) kubernetes(ctx context.Context, tune func(*rest.Config)) (kubernetes.Interface, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	answer, err := b.client.Cluster.Kubeconfig(ctx, &api.KubeconfigRequest{Server: b.endpoint()})
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(answer.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	config.Dial = b.network.DialContext
	config.ContentType = "application/vnd.kubernetes.protobuf"
	tune(config)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return kube, nil
}

// The function until watches until an object satisfies ok, and returns the local time at which the
// watch delivered that object. It starts the watch again if the watch ends or if the API server
// rejects it. At the start of a cluster, the API server rejects the watch until it has created the
// rights of administrators.
func until(ctx context.Context, begin func() (watch.Interface, error), ok func(watch.Event) bool) (time.Time, error) {
	var last error
	for {
		w, err := begin()
		if err == nil {
			at, found := first(ctx, w, ok)
			w.Stop()
			if found {
				return at, nil
			}
			err = errors.New("the watch ended")
		}
		if ctx.Err() == nil {
			last = err
		}
		if end := backoff.Sleep(ctx, retryPause); end != nil {
			return time.Time{}, errors.Join(end, last)
		}
	}
}

// first returns the local time of the first event that satisfies ok, and true. It returns false if
// the watch or ctx ends before.
func first(ctx context.Context, w watch.Interface, ok func(watch.Event) bool) (time.Time, bool) {
	for {
		select {
		case e, open := <-w.ResultChan():
			if !open {
				return time.Time{}, false
			}
			if ok(e) {
				return time.Now(), true
			}
		case <-ctx.Done():
			return time.Time{}, false
		}
	}
}

func nodeReady(e watch.Event) bool {
	n, isNode := e.Object.(*core.Node)
	return isNode && isReady(n)
}

func isReady(n *core.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == core.NodeReady && c.Status == core.ConditionTrue {
			return true
		}
	}
	return false
}

func podRunning(e watch.Event) bool {
	p, isPod := e.Object.(*core.Pod)
	return isPod && p.Status.Phase == core.PodRunning
}

// createPod creates the pod and retries while the API server rejects it. Admission needs the
// service account of the namespace, which a controller creates after the start of the API server.
// The wait is part of the measured time, because a user would also have to wait.
func createPod(ctx context.Context, kube kubernetes.Interface) error {
	grace := int64(0)
	pod := &core.Pod{
		ObjectMeta: meta.ObjectMeta{Name: podName},
		Spec: core.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers:                    []core.Container{{Name: "c", Image: imageName, ImagePullPolicy: core.PullNever}},
		},
	}
	for {
		_, err := kube.CoreV1().Pods("default").Create(ctx, pod, meta.CreateOptions{})
		if err == nil {
			return nil
		}
		if end := backoff.Sleep(ctx, retryPause); end != nil {
			return fmt.Errorf("pod: cannot create: %w: %w", end, err)
		}
	}
}
