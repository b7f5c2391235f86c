package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

const (
	// podsPerWorker is the number of pods that are created concurrently.
	podsPerWorker = 50
	// morePods is the number of pods that are created one after the other. The concurrently created
	// pods run meanwhile.
	morePods = 20
)

// podsFigures are the figures of pods that start on a worker.
type podsFigures struct {
	outcome
	PerWorker int `json:"per_worker"`
	// AtOnce has the times of podsPerWorker pods, which are created as fast as the API accepts
	// them. OneByOne has the times of morePods further pods. Each of them is created when the
	// previous pod is Ready.
	AtOnce   *podStarts `json:"at_once,omitempty"`
	OneByOne *podStarts `json:"one_by_one,omitempty"`
}

// podStarts holds percentiles of the start times of pods, in seconds.
type podStarts struct {
	Pods       int     `json:"pods"`
	RunningP50 float64 `json:"scheduled_to_running_p50_s"`
	RunningP99 float64 `json:"scheduled_to_running_p99_s"`
	ReadyP50   float64 `json:"scheduled_to_ready_p50_s"`
	ReadyP99   float64 `json:"scheduled_to_ready_p99_s"`
	CreatedP50 float64 `json:"created_to_ready_p50_s"`
	CreatedP99 float64 `json:"created_to_ready_p99_s"`
	AllReadyS  float64 `json:"all_ready_s"` // from the first creation until the last pod is Ready
}

func (f *podsFigures) rows() []row {
	var rows []row
	add := func(what string, s *podStarts) {
		if s == nil {
			return
		}
		rows = append(rows,
			row{what, fmt.Sprintf("%d pods, all Ready after %.1f s", s.Pods, s.AllReadyS), ""},
			row{"  scheduled → Running, p50 p99", fmt.Sprintf("%.1f s  %.1f s", s.RunningP50, s.RunningP99), ""},
			row{"  scheduled → Ready, p50 p99", fmt.Sprintf("%.1f s  %.1f s", s.ReadyP50, s.ReadyP99), ""},
			row{"  created → Ready, p50 p99", fmt.Sprintf("%.1f s  %.1f s", s.CreatedP50, s.CreatedP99), ""})
	}
	add(fmt.Sprintf("%d on a worker at once", f.PerWorker), f.AtOnce)
	add("one by one, beside them", f.OneByOne)
	return rows
}

// pods creates a control-plane machine and a worker, and starts pods on the worker.
func (b *bench) pods(ctx context.Context) (figures, error) {
	f := &podsFigures{PerWorker: podsPerWorker}
	if err := b.cluster.Create(ctx); err != nil {
		return f, err
	}
	if _, err := b.connect(ctx); err != nil {
		return f, err
	}
	if err := b.importImage(ctx); err != nil {
		return f, err
	}
	var all []*core.Pod
	for n := range podsPerWorker {
		all = append(all, b.pod("at-once", n))
	}
	starts := podTimes{}
	err := b.start(ctx, "at-once", all, starts)
	f.AtOnce = starts.figures()
	if err != nil {
		return f, err
	}
	singles := podTimes{}
	defer func() { f.OneByOne = singles.figures() }()
	for n := range morePods {
		if err := b.start(ctx, "one-by-one", []*core.Pod{b.pod("one-by-one", n)}, singles); err != nil {
			return f, err
		}
	}
	return f, nil
}

// pod returns the n-th pod of a group.
func (b *bench) pod(group string, n int) *core.Pod {
	return &core.Pod{ObjectMeta: meta.ObjectMeta{Name: fmt.Sprintf("%s-%d", group, n), Labels: map[string]string{appLabel: group}}, Spec: podSpec(b.workers())}
}

// podTime holds the time of the request that creates a pod, and the times at which a watch first
// delivered the pod as scheduled, Running and Ready.
type podTime struct{ created, scheduled, running, ready time.Time }

// podTimes maps the names of the pods to their times.
type podTimes map[string]*podTime

// see records now as the time of each state in which a watch has delivered the pod p for the first
// time. It ignores pods that are not in the map.
func (t podTimes) see(p *core.Pod, now time.Time) {
	of := t[p.Name]
	if of == nil {
		return // the pod belongs to another group
	}
	first := func(at *time.Time, is bool) {
		if is && at.IsZero() {
			*at = now
		}
	}
	first(&of.scheduled, p.Spec.NodeName != "")
	first(&of.running, p.Status.Phase == core.PodRunning)
	first(&of.ready, podReady(p))
}

// allReady reports whether all pods in the map are Ready.
func (t podTimes) allReady() bool {
	for _, of := range t {
		if of.ready.IsZero() {
			return false
		}
	}
	return true
}

// figures returns the figures of the pods that became Ready. It returns nil if no pod became Ready.
func (t podTimes) figures() *podStarts {
	var running, ready, created []float64
	var begin, end time.Time
	for _, of := range t {
		if of.ready.IsZero() {
			continue
		}
		running = append(running, of.running.Sub(of.scheduled).Seconds())
		ready = append(ready, of.ready.Sub(of.scheduled).Seconds())
		created = append(created, of.ready.Sub(of.created).Seconds())
		if begin.IsZero() || of.created.Before(begin) {
			begin = of.created
		}
		if of.ready.After(end) {
			end = of.ready
		}
	}
	if len(ready) == 0 {
		return nil
	}
	return &podStarts{
		Pods: len(ready), RunningP50: percentile(running, 0.5), RunningP99: percentile(running, 0.99), ReadyP50: percentile(ready, 0.5),
		ReadyP99: percentile(ready, 0.99), CreatedP50: percentile(created, 0.5), CreatedP99: percentile(created, 0.99), AllReadyS: end.Sub(begin).Seconds(),
	}
}

// start creates the pods as soon as a watch of their group exists. It returns when the watch has
// delivered all pods in times as Ready. It adds the new pods to times.
func (b *bench) start(ctx context.Context, group string, pods []*core.Pod, times podTimes) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	selected := appLabel + "=" + group
	list := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o meta.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selected
			return b.watching.CoreV1().Pods(namespace).List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o meta.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selected
			return b.watching.CoreV1().Pods(namespace).Watch(ctx, o)
		},
	}
	// One goroutine creates the pods, and another goroutine handles the watch. Only the second
	// goroutine accesses times. The first goroutine sends it the name of each pod and the time of
	// the request, before it sends the request.
	asked := make(chan created, len(pods))
	take := func() {
		for {
			select {
			case c := <-asked:
				times[c.name] = &podTime{created: c.at}
			default:
				return
			}
		}
	}
	begin := func(cache.Store) (bool, error) {
		go func() {
			for _, p := range pods {
				asked <- created{p.Name, b.clock.Now()}
				if _, err := b.watching.CoreV1().Pods(namespace).Create(ctx, p, meta.CreateOptions{}); err != nil {
					stop(fmt.Errorf("pod %s: cannot create: %w", p.Name, err))
					return
				}
			}
		}()
		return false, nil
	}
	names := slices.Collect(maps.Keys(times))
	_, err := watchtools.UntilWithSync(ctx, list, &core.Pod{}, begin, func(e watch.Event) (bool, error) {
		now := b.clock.Now()
		take()
		if p, isPod := e.Object.(*core.Pod); isPod && e.Type != watch.Deleted {
			times.see(p, now)
		}
		return len(times) == len(names)+len(pods) && times.allReady(), nil
	})
	take()
	if err != nil {
		return fmt.Errorf("pods of the group %s: %w", group, cause(ctx, err))
	}
	return nil
}

// created is the name of a pod and the time of the request that creates it.
type created struct {
	name string
	at   time.Time
}

// cause returns the cause of the end of ctx. It returns err if ctx has not ended.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}
