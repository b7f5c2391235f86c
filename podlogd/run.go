package podlogd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/otlp"
	"github.com/orlop-os/orlop/pkg/panics"
)

// Options configure Serve.
type Options struct {
	Dir      string // directory of the logs of pods; it must exist
	Settings nodespec.PodLogs
	// Client connects to machined (nodespec.PodLogsURL).
	Client *http.Client
	Log    *slog.Logger
}

// Limits of a batch: its records, and the bytes of their texts. They bound the memory of a reader.
const maxRecords, maxBytes = 512, 512 << 10

const (
	// streamBytes is the memory of a reader for incomplete lines, in bytes.
	streamBytes = 2 << 20
	// gatherTime is the longest time from the first record of a batch to its delivery.
	gatherTime = time.Second
	// pollTime is the delay after a pass that has read all lines.
	pollTime = time.Second
	// storeTime is the shortest time between two writes of the positions. After a power cut,
	// podlogd delivers the records since the last write again.
	storeTime = 10 * time.Second
	// lastTime is the time at shutdown to deliver the last batch and to store the positions.
	lastTime = 2 * time.Second
)

// Serve delivers the logs of pods to the receivers until ctx ends. If a reader panics, Serve
// returns an error; after a restart, the process continues from the stored positions.
func Serve(ctx context.Context, o Options) error {
	root, err := os.OpenRoot(o.Dir)
	if err != nil {
		return fmt.Errorf("podlogd: cannot open the directory: %w", err)
	}
	defer root.Close()
	running, stop := context.WithCancel(ctx)
	defer stop()
	var readers sync.WaitGroup
	for _, name := range o.Settings.Receivers {
		r := newReader(o, root, name)
		readers.Go(panics.Guarded("logs of pods for "+name, func() {
			defer stop()
			r.run(running)
		}))
	}
	readers.Wait()
	if ctx.Err() == nil {
		return errors.New("podlogd: a reader has ended")
	}
	return nil
}

// reader reads the logs of all containers for one receiver.
type reader struct {
	Options
	root *os.Root
	name string // name of the receiver

	logs   map[Container]*log
	budget budget
	batch  otlp.Batch
	bytes  int       // of the texts in the batch
	begun  time.Time // time of the first record of the batch

	// delivered has, for the directory of each container, the position after its last delivered
	// record. touched has the containers that were read since the last delivery.
	delivered map[string]Position
	touched   map[Container]bool
	stored    []byte // the last stored form of delivered, in JSON
	storedAt  time.Time
	problem   string // last logged problem; "" if the last report had none
}

// newReader returns a reader that has not loaded its positions yet.
func newReader(o Options, root *os.Root, name string) *reader {
	return &reader{
		Options: o, root: root, name: name, logs: map[Container]*log{}, budget: budget{limit: streamBytes},
		delivered: map[string]Position{}, touched: map[Container]bool{},
	}
}

// run reads and delivers logs until ctx ends.
func (r *reader) run(ctx context.Context) {
	if r.retry(ctx, func() error { return r.load(ctx) }) != nil {
		return
	}
	for ctx.Err() == nil {
		more, err := r.pass(ctx)
		if r.due() { // also after a problem of one log, because the batch has lines of other logs
			err = errors.Join(err, r.flush(ctx))
		}
		r.report(err)
		if !more {
			_ = backoff.Sleep(ctx, pollTime) // the loop checks ctx
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
	defer cancel()
	r.report(errors.Join(r.deliver(last), r.store(last)))
}

// report logs a problem, if it differs from the last report.
func (r *reader) report(err error) {
	text := ""
	if err != nil && !errors.Is(err, context.Canceled) {
		text = err.Error()
	}
	if text != "" && text != r.problem {
		r.Log.Warn("problem", "receiver", r.name, "error", text)
	}
	r.problem = text
}

// retry repeats an operation until it succeeds or ctx ends.
func (r *reader) retry(ctx context.Context, do func() error) error {
	for failures := 1; ; failures++ {
		err := do()
		if err == nil {
			return nil
		}
		r.report(err)
		pause := backoff.Backoff{Min: time.Second, Max: 30 * time.Second}.Delay(failures)
		if refusal := (*otlp.Refusal)(nil); errors.As(err, &refusal) {
			pause = max(pause, refusal.Wait)
		}
		if backoff.Sleep(ctx, pause) != nil {
			return ctx.Err()
		}
	}
}

// selects reports whether the settings select a namespace.
func (r *reader) selects(namespace string) bool {
	s := r.Settings
	return (len(s.Namespaces) == 0 || slices.Contains(s.Namespaces, namespace)) && !slices.Contains(s.Exclude, namespace)
}

// pass reads new lines of each container, one turn for each (log.turn). more is true if a container
// has further lines.
func (r *reader) pass(ctx context.Context) (more bool, err error) {
	list, err := containers(r.root, r.selects)
	if err != nil {
		return false, fmt.Errorf("logs of pods: cannot list: %w", err)
	}
	var problems []error
	for _, pod := range slices.Sorted(maps.Keys(list.unreadable)) {
		problems = append(problems, fmt.Errorf("logs of pod %s: cannot list: %w", pod, list.unreadable[pod]))
	}
	if list.more {
		problems = append(problems, fmt.Errorf("logs of pods: there are more than %d containers; the others are not read", maxContainers))
	}
	if err := r.forget(ctx, list); err != nil {
		return false, err
	}
	for _, c := range list.containers {
		l := r.logs[c]
		if l == nil {
			l = &log{limit: newLimiter(r.Settings.LinesPerSecond), position: r.delivered[c.dir()]}
			r.logs[c] = l
		}
		before := l.position
		each := func(one record) { r.add(c, l.position.Restart, one) }
		rest, err := l.turn(r.root, c.dir(), &r.budget, each, func() error {
			r.touched[c] = true
			return r.room(ctx)
		})
		if dropped := l.limit.report(time.Now()); dropped > 0 {
			each(l.droppedRecord(dropped))
		}
		if l.position != before {
			r.touched[c] = true
		}
		if err == nil {
			err = r.room(ctx) // the record about dropped lines may have filled the batch
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("log of %s: cannot read: %w", c.dir(), err))
		}
		more = more || rest
	}
	return more, errors.Join(problems...)
}

// room delivers the batch if it is full, because machined rejects larger requests.
func (r *reader) room(ctx context.Context) error {
	if r.batch.Records < maxRecords && r.bytes < maxBytes {
		return ctx.Err()
	}
	return r.flush(ctx)
}

// forget drops the containers without logs, because the kubelet has deleted them. It adds their
// incomplete lines to the batch as records. The containers of a pod with an unreadable directory
// may still exist, so forget retains them.
func (r *reader) forget(ctx context.Context, present listing) error {
	exists := map[string]bool{} // by the directory of the container
	for _, c := range present.containers {
		exists[c.dir()] = true
	}
	retained := func(dir string) bool {
		pod, _, _ := strings.Cut(dir, "/")
		return exists[dir] || present.unreadable[pod] != nil
	}
	for c, l := range r.logs {
		if retained(c.dir()) {
			continue
		}
		l.flushStreams(&r.budget, func(one record) { r.add(c, l.position.Restart, one) })
		if l.limit.dropped > 0 {
			r.add(c, l.position.Restart, l.droppedRecord(l.limit.dropped))
		}
		delete(r.logs, c)
		delete(r.touched, c)
		if err := r.room(ctx); err != nil {
			return err
		}
	}
	maps.DeleteFunc(r.delivered, func(dir string, _ Position) bool { return !retained(dir) })
	return nil
}

// scope is the instrumentation scope of the records, which names the program that creates them. The
// records of the machine have another scope.
const scope = "github.com/orlop-os/orlop/podlogd"

// add adds a record to the batch.
func (r *reader) add(c Container, restart int, one record) {
	if r.batch.Records == 0 {
		r.batch.Scope, r.begun = scope, time.Now()
	}
	p := one.position
	attributes := []*common.KeyValue{otlp.String("orlop.position", fmt.Sprintf("%d/%s/%d", p.Restart, p.First, p.Offset))}
	if one.notice != "" {
		attributes = append(attributes, otlp.String("orlop.kind", "missed"))
	} else {
		name := "stdout"
		if one.stderr {
			name = "stderr"
		}
		attributes = append(attributes, otlp.String("log.iostream", name))
	}
	if one.missed > 0 {
		attributes = append(attributes, otlp.Int("orlop.missed", int64(one.missed)))
	}
	if one.cut {
		attributes = append(attributes, otlp.String("orlop.kind", "part"))
	}
	record := otlp.NewRecord(one.at, time.Now(), one.text+one.notice, attributes...)
	if one.notice != "" {
		otlp.SetSeverity(record, 4)
	}
	r.batch.Add(c.dir()+"/"+strconv.Itoa(restart), func() []*common.KeyValue {
		return append(otlp.Resource(r.Settings.Machine, c.Name),
			otlp.String("k8s.node.name", r.Settings.Machine), otlp.String("k8s.namespace.name", c.Namespace), otlp.String("k8s.pod.name", c.Pod),
			otlp.String("k8s.pod.uid", c.UID), otlp.String("k8s.container.name", c.Name), otlp.Int("k8s.container.restart_count", int64(restart)))
	}, record)
	r.bytes += len(one.text) + len(one.notice)
}

// due reports whether run must call flush after a pass: the batch is full, is older than
// gatherTime, or is empty. With an empty batch, flush only updates and stores the positions.
func (r *reader) due() bool {
	return r.batch.Records == 0 || r.batch.Records >= maxRecords || r.bytes >= maxBytes || time.Since(r.begun) >= gatherTime
}

// flush delivers the batch, and retries until the receiver has accepted it or ctx ends. Then it
// stores the positions if the last write is older than storeTime.
func (r *reader) flush(ctx context.Context) error {
	if err := r.retry(ctx, func() error { return r.deliver(ctx) }); err != nil {
		return err
	}
	if time.Since(r.storedAt) < storeTime {
		return nil
	}
	return r.store(ctx)
}

// deliver tries once to deliver the batch. After a success it advances the positions.
func (r *reader) deliver(ctx context.Context) error {
	if r.batch.Records > 0 {
		body, err := otlp.Encode(r.batch.Data())
		if err != nil {
			return err
		}
		if _, err := otlp.Post(ctx, r.Client, nodespec.PodLogsURL+r.name+otlp.Path+"?records="+strconv.Itoa(r.batch.Records), body, r.batch.Records); err != nil {
			return err
		}
		r.batch, r.bytes = otlp.Batch{}, 0
	}
	for c := range r.touched {
		r.delivered[c.dir()] = r.logs[c].safe()
	}
	clear(r.touched)
	return nil
}

// store sends the positions to machined, if they have changed since the last write.
func (r *reader) store(ctx context.Context) error {
	text, err := json.Marshal(positions{r.delivered})
	if err != nil || bytes.Equal(text, r.stored) {
		return err
	}
	if _, err := r.call(ctx, http.MethodPut, text); err != nil {
		return fmt.Errorf("positions: cannot store: %w", err)
	}
	r.stored, r.storedAt = text, time.Now()
	return nil
}

// load gets the positions from machined. If they are damaged, the reader starts without positions
// and delivers all lines again.
func (r *reader) load(ctx context.Context) error {
	text, err := r.call(ctx, http.MethodGet, nil)
	if err != nil {
		return fmt.Errorf("positions: cannot load: %w", err)
	}
	p := positions{}
	if err := json.Unmarshal(text, &p); err != nil && len(text) > 0 {
		r.Log.Warn("the positions are damaged, so all lines are sent again", "receiver", r.name, "error", err.Error())
		return nil
	}
	if p.Containers != nil {
		r.delivered = p.Containers
	}
	return nil
}

// positions is the stored form of the positions of a receiver, by the directory of a container.
type positions struct {
	Containers map[string]Position `json:"containers"`
}

// call gets the positions from machined, or sends them.
func (r *reader) call(ctx context.Context, method string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, nodespec.PodLogsURL+r.name+nodespec.PodLogsPositions, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := r.Client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, nodespec.MaxPodLogsBody))
	if err == nil && response.StatusCode/100 != 2 {
		err = fmt.Errorf("machined answers %s: %s", response.Status, bytes.TrimSpace(text[:min(len(text), 300)]))
	}
	return text, err
}
