package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/test/testimage"
)

const (
	namespace = "default"
	// imageName is the image with the web server of the stories.
	imageName = "test.orlop.dev/bench:1"
	servePort = 8080
	appLabel  = "app"
)

// importImage imports the image of the pods on all workers. Further calls do nothing.
func (b *bench) importImage(ctx context.Context) error {
	if b.images {
		return nil
	}
	archive := filepath.Join(b.dir, "pod-image.tar")
	if err := testimage.Write(ctx, archive, imageName); err != nil {
		return err
	}
	contexts := b.cluster.Machines()
	for _, worker := range b.workers() {
		if err := b.cluster.Orlopctl(ctx, "--context", contexts[worker], "image", "import", archive); err != nil {
			return err
		}
	}
	b.images = true
	return nil
}

// workers returns the names of all workers of the cluster.
func (b *bench) workers() []string {
	var names []string
	for n := range b.cluster.Workers {
		names = append(names, fmt.Sprintf("w%d", n+1))
	}
	return names
}

// podSpec returns a pod with a web server that can run only on the given workers.
func podSpec(workers []string) core.PodSpec {
	grace := int64(1)
	return core.PodSpec{
		TerminationGracePeriodSeconds: &grace,
		Containers:                    []core.Container{{Name: "web", Image: imageName, ImagePullPolicy: core.PullNever}},
		Affinity: &core.Affinity{NodeAffinity: &core.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &core.NodeSelector{
			NodeSelectorTerms: []core.NodeSelectorTerm{{MatchExpressions: []core.NodeSelectorRequirement{
				{Key: core.LabelHostname, Operator: core.NodeSelectorOpIn, Values: workers},
			}}},
		}}},
	}
}

// deployment returns a Deployment of web servers, spread evenly over the workers, with a readiness
// probe every second.
func deployment(name string, workers []string, replicas int32) *apps.Deployment {
	labels := map[string]string{appLabel: name}
	spec := podSpec(workers)
	spec.Containers[0].ReadinessProbe = &core.Probe{PeriodSeconds: 1, ProbeHandler: core.ProbeHandler{HTTPGet: &core.HTTPGetAction{Path: "/", Port: intstr.FromInt32(servePort)}}}
	spec.TopologySpreadConstraints = []core.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: core.LabelHostname, WhenUnsatisfiable: core.ScheduleAnyway, LabelSelector: &meta.LabelSelector{MatchLabels: labels},
	}}
	return &apps.Deployment{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Spec: apps.DeploymentSpec{
			Replicas: &replicas, Selector: &meta.LabelSelector{MatchLabels: labels},
			Template: core.PodTemplateSpec{ObjectMeta: meta.ObjectMeta{Labels: labels}, Spec: spec},
		},
	}
}

// readyPods returns the container IDs of the Ready pods. It omits the containers in before, and
// pods that are being deleted.
func readyPods(list []core.Pod, before map[string]bool) map[string]bool {
	ids := map[string]bool{}
	for i := range list {
		p := &list[i]
		if p.DeletionTimestamp != nil || !podReady(p) || len(p.Status.ContainerStatuses) == 0 {
			continue
		}
		if id := p.Status.ContainerStatuses[0].ContainerID; id != "" && !before[id] {
			ids[id] = true
		}
	}
	return ids
}

func podReady(p *core.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == core.PodReady {
			return c.Status == core.ConditionTrue
		}
	}
	return false
}

// allBack waits until at least wanted pods of the Deployment app are Ready, with containers that
// are not in before. It returns the time, and the IDs of these containers.
func (b *bench) allBack(ctx context.Context, app string, wanted int, before map[string]bool) (time.Time, map[string]bool, error) {
	for {
		list, err := b.kube.CoreV1().Pods(namespace).List(ctx, meta.ListOptions{LabelSelector: appLabel + "=" + app})
		if err == nil {
			ids := readyPods(list.Items, before)
			if len(ids) >= wanted {
				return b.clock.Now(), ids, nil
			}
			err = fmt.Errorf("%d of %d pods are Ready", len(ids), wanted)
		}
		if backoff.Sleep(ctx, pause) != nil {
			return time.Time{}, nil, fmt.Errorf("Deployment %s: %w", app, err)
		}
	}
}
