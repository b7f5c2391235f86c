package sender

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"

	"github.com/orlop-os/orlop/pkg/otlp"
)

// Limits of a batch. A batch gets no further record after it has maxBatchBytes. The largest record
// (of the audit log of Kubernetes) has 256 KiB, so a batch has at most 512 KiB of text.
const maxBatch, maxBatchBytes = 256, 256 << 10

// sendBatches delivers batches until the receiver does not accept a batch, or the context ends. Run
// then reads the records of this batch again from their sources.
func (s *Sender) sendBatches(ctx context.Context) error {
	lines, stop := s.follow(ctx)
	defer stop()
	defer s.client.CloseIdleConnections()
	for {
		batch := s.gather(ctx, lines)
		if len(batch) == 0 {
			return ctx.Err()
		}
		if err := s.export(ctx, batch); err != nil {
			return err
		}
	}
}

// newClient returns the client for batches, which connects with dial.
func (s *Sender) newClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				conn, _, err := s.dial(ctx)
				if err != nil {
					return nil, err // not conn, because a nil *tls.Conn in a net.Conn is not nil
				}
				return conn, nil
			},
			MaxConnsPerHost: 1, IdleConnTimeout: 30 * time.Second, MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// gather waits for a record, and returns it with the records that follow soon. When the context
// ends, it returns the records that it has received until then.
func (s *Sender) gather(ctx context.Context, lines <-chan Record) (batch []Record) {
	var due <-chan time.Time
	for size := 0; len(batch) < maxBatch && size < maxBatchBytes; {
		select {
		case l := <-lines:
			if due == nil {
				due = time.After(s.times.gather)
			}
			for _, each := range s.next(l) {
				batch = append(batch, each)
				size += len(each.Text)
			}
		case <-due:
			return batch
		case <-ctx.Done():
			return batch
		}
	}
	return batch
}

// export delivers a batch. The answer confirms the delivery of all records of the batch.
func (s *Sender) export(ctx context.Context, batch []Record) error {
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.times.write)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(s.times.shutdown, cancel) })()
	body, err := otlp.Encode(s.config.Batch(batch))
	if err != nil {
		return err
	}
	if err := s.post(last, body, len(batch)); err != nil {
		return err
	}
	s.markDelivered()
	return nil
}

// Pass sends a body that package otlp has encoded. records is the number of records in the body;
// they do not come from the sources. A sender that is used with Pass must not be run; it permits a
// single call at a time.
func (s *Sender) Pass(ctx context.Context, body []byte, records int) error {
	ctx, cancel := context.WithTimeout(ctx, s.times.write)
	defer cancel()
	err := s.post(ctx, body, records)
	s.mu.Lock()
	if err != nil {
		s.state.Connected = time.Time{}
	} else {
		s.state.Sent += uint64(records)
	}
	s.mu.Unlock()
	if err != nil {
		s.fail(err)
	}
	return err
}

// post sends a body with a number of records, and records the answer in the state.
func (s *Sender) post(ctx context.Context, body []byte, records int) error {
	answer, err := otlp.Post(ctx, s.client, "https://"+s.config.Address+otlp.Path, body, records)
	if err != nil {
		return fmt.Errorf("%s: %w", s.config.Address, err)
	}
	s.mu.Lock()
	if s.state.Connected.IsZero() {
		s.state.Connected = time.Now()
	}
	s.state.Rejected += answer.Rejected
	s.mu.Unlock()
	if answer.Problem != "" {
		s.problem(fmt.Errorf("%s: %d records of a batch were rejected: %s", s.config.Address, answer.Rejected, answer.Problem))
	}
	if answer.Rejected > 0 && !s.reported.rejected {
		// a single event, because each event is another record that the receiver can reject
		s.reported.rejected = true
		s.config.Event("failure", fmt.Sprintf("receiver %s: rejects records, which are not sent again: %s", s.config.Name, answer.Problem))
	}
	s.markHealthy()
	return nil
}

// scope is the instrumentation scope of the records: the package that makes them.
const scope = "github.com/orlop-os/orlop/machined/logship"

// OTLP returns records of a machine in the form of OTLP. The body is the text as in JSON, so that
// the chain of an audit log can be verified. The attributes orlop.* are the fields of JSON;
// orlop.before is the digest of the previous line of an audit log.
func OTLP(machine string, batch []Record, now time.Time) *logs.LogsData {
	b := otlp.Batch{Scope: scope}
	for _, l := range batch {
		attributes := []*common.KeyValue{
			otlp.String("orlop.source", l.Source), otlp.Int("orlop.number", int64(l.Number)), otlp.String("orlop.kind", l.Kind),
		}
		if l.Boot != "" {
			attributes = append(attributes, otlp.String("orlop.boot", l.Boot))
		}
		if l.Missed > 0 {
			attributes = append(attributes, otlp.Int("orlop.missed", int64(l.Missed)))
		}
		if before := chained(l); before != "" {
			attributes = append(attributes, otlp.String("orlop.before", before))
		}
		r := otlp.NewRecord(l.Time, now, l.Text, attributes...)
		otlp.SetSeverity(r, l.Severity)
		b.Add(l.App, func() []*common.KeyValue { return otlp.Resource(machine, l.App) }, r)
	}
	return b.Data()
}

// chained returns the SHA-256 of the previous line of an audit log; empty for another record.
func chained(l Record) string {
	var e struct{ Before string }
	if l.Boot != "" || l.Missed > 0 || json.Unmarshal([]byte(l.Text), &e) != nil {
		return ""
	}
	return e.Before
}
