package logship

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/machined/logship/sender"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/audit/kubeaudit"
	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/kernel/kmsg"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// facilityAudit and facilityDaemon are syslog's facilities log audit and system daemons (RFC 5424,
// 6.2.1).
const facilityAudit, facilityDaemon = 13, 3

// Severities of records without their own.
const severityWarning, severityNotice, severityInfo = 4, 5, 6

// sources returns the sources of a receiver.
func (s *Shipper) sources(want []config.LogSource) (list []sender.Source) {
	boot := bootenv.BootID()
	changes, refused := s.deps.AuditLogs()
	for _, source := range want {
		switch source {
		case config.SourceAudit:
			if changes != nil {
				list = append(list, auditSource(string(source), changes))
			}
			if refused != nil {
				list = append(list, auditSource(string(source)+"-"+audit.Refused, refused))
			}
		case config.SourceKubernetes:
			if s.kubernetes.log != nil {
				list = append(list, kubernetesSource(s.kubernetes.log))
			}
		case config.SourceEvents:
			list = append(list, eventSource(s.deps.Events, boot))
		case config.SourceServices:
			list = append(list, s.servicesSource(boot))
		case config.SourceKernel:
			list = append(list, kernelSource(boot))
		}
	}
	return list
}

// auditSource is a record of the audit log. Each line is sent as it was written, so the receiver
// can verify the chain.
func auditSource(name string, log *audit.Log) sender.Source {
	return sender.Source{
		Newest: func() map[string]uint64 { return map[string]uint64{name: log.Newest()} },
		Follow: func(ctx context.Context, after func(string) uint64, each func(sender.Record) error) error {
			last := after(name)
			if last > log.Newest() {
				last = 0 // the record was restarted
			}
			for {
				grown := log.Changed()
				err := log.Read(last, func(number uint64, line []byte) error {
					var e audit.Entry
					if err := json.Unmarshal(line, &e); err != nil || number == 0 {
						return nil // the numbers of the lines around it show the gap
					}
					last = number
					l := sender.Record{
						Source: name, Number: number, Time: e.At, Facility: facilityAudit, Severity: severityInfo, App: name, Kind: "call", Text: string(line),
					}
					if e.Status != "OK" {
						l.Severity = severityNotice
					}
					return each(l)
				})
				if err != nil {
					return err
				}
				select {
				case <-grown:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		},
	}
}

// kubernetesSource is the audit log of Kubernetes. Each line is sent as it was written, so the
// receiver can verify the chain.
func kubernetesSource(log *kubeaudit.Log) sender.Source {
	const name = string(config.SourceKubernetes)
	return sender.Source{
		Newest: func() map[string]uint64 { return map[string]uint64{name: log.Newest()} },
		Follow: func(ctx context.Context, after func(string) uint64, each func(sender.Record) error) error {
			last, checked := after(name), false
			for r := (&kubeaudit.Reader{Log: log}); ; {
				grown := log.Changed()
				// the log does not exist before the disk is mounted, and before the first request
				if !checked {
					newest := log.Newest()
					if checked = newest > 0; checked && last > newest {
						last = 0 // the log was restarted
					}
				}
				err := r.Read(last, func(number uint64, line []byte) error {
					if err := each(kubernetesRecord(name, number, line)); err != nil {
						return err
					}
					last = number
					return nil
				})
				if err != nil {
					return err
				}
				select {
				case <-grown:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		},
	}
}

// kubernetesRecord returns the record of a line of the audit log of Kubernetes.
func kubernetesRecord(name string, number uint64, line []byte) sender.Record {
	var e struct {
		StageTimestamp time.Time
		ResponseStatus struct{ Code int }
	}
	l := sender.Record{Source: name, Number: number, Facility: facilityAudit, Severity: severityInfo, App: name, Kind: "request", Text: string(line)}
	if json.Unmarshal(line, &e) != nil || e.ResponseStatus.Code >= http.StatusBadRequest {
		l.Severity = severityNotice
	}
	l.Time = e.StageTimestamp
	return l
}

// Event is an event of the machine.
type Event struct {
	Number  uint64 // 1 for the first event since boot, then increasing by one
	Time    time.Time
	Source  string // "boot", "disk", …
	Kind    string // "failure", "operation", …
	Message string // one line
}

// Events reads the events of the machine.
type Events struct {
	// Newest returns the number of the newest event; 0 if there is none.
	Newest func() uint64
	// Tail calls each for every event after a number, until ctx ends or each fails.
	Tail func(ctx context.Context, after uint64, each func(Event) error) error
}

// eventSource is the events since power-on.
func eventSource(l Events, boot string) sender.Source {
	const name = string(config.SourceEvents)
	return sender.Source{
		Newest: func() map[string]uint64 { return map[string]uint64{name: l.Newest()} },
		Follow: func(ctx context.Context, after func(string) uint64, each func(sender.Record) error) error {
			return l.Tail(ctx, after(name), func(e Event) error {
				line := sender.Record{
					Source: name, Boot: boot, Number: e.Number, Time: e.Time, Facility: facilityDaemon, Severity: severityInfo,
					App: "machined", Kind: e.Kind, Text: e.Source + ": " + e.Message,
				}
				if e.Kind == "failure" {
					line.Severity = severityWarning
				}
				return each(line)
			})
		},
	}
}

// kernelSource is the kernel log. The kernel numbers records from 0, a source numbers lines from 1.
func kernelSource(boot string) sender.Source {
	const name = string(config.SourceKernel)
	return sender.Source{
		Newest: func() map[string]uint64 {
			last, err := kmsg.Tail(1)
			if err != nil || len(last) == 0 {
				return nil
			}
			return map[string]uint64{name: last[0].Seq + 1}
		},
		Follow: func(ctx context.Context, after func(string) uint64, each func(sender.Record) error) error {
			last := after(name)
			return kmsg.Follow(ctx, 0, func(r kmsg.Record) error {
				if r.Seq < last {
					return nil
				}
				return each(sender.Record{
					Source: name, Boot: boot, Number: r.Seq + 1, Time: kernelTime(r.At), Facility: r.Facility, Severity: r.Priority,
					App: name, Kind: "log", Text: r.Text,
				})
			})
		},
	}
}

// kernelTime returns the time of a kernel record, by the present clock.
func kernelTime(at time.Duration) time.Time {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return time.Now() // this cannot happen: CLOCK_MONOTONIC can always be read
	}
	return time.Now().Add(at - time.Duration(now.Nano()))
}

// servicesSource is the logs of all services, present and future.
func (s *Shipper) servicesSource(boot string) sender.Source {
	all := &s.rings
	const prefix = string(config.SourceServices) + "/"
	return sender.Source{
		Newest: func() map[string]uint64 {
			newest := map[string]uint64{}
			for service, n := range all.get() {
				newest[prefix+service] = n.newest()
			}
			return newest
		},
		Follow: func(ctx context.Context, after func(string) uint64, each func(sender.Record) error) error {
			ctx, stop := context.WithCancel(ctx)
			var followers sync.WaitGroup
			defer followers.Wait()
			defer stop()
			following, stops := map[string]*supervise.LogRing{}, map[string]context.CancelFunc{}
			for w := s.deps.Services.Status().Watch(); ; {
				list, _, err := w.Next(ctx)
				if err != nil {
					return err
				}
				for _, service := range list {
					// Log fails if the service has just been removed.
					if ring, err := s.deps.Services.Log(service.Name); err == nil {
						all.set(service.Name, ring)
					}
				}
				// all.get() includes removed services: their last lines may contain the reason of
				// the removal.
				for service, n := range all.get() {
					if following[service] == n.ring {
						continue
					}
					if following[service] != nil {
						stops[service]()
					}
					one, stopOne := context.WithCancel(ctx)
					following[service], stops[service] = n.ring, stopOne
					followers.Go(panics.Guarded("log of "+service, func() {
						defer stopOne()
						n.tail(one, after(prefix+service), func(l supervise.LogLine) error {
							return each(sender.Record{
								Source: prefix + service, Boot: boot, Number: n.before + l.Seq, Time: l.Time,
								Facility: facilityDaemon, Severity: severityInfo, App: service, Kind: "log", Text: l.Text,
							})
						})
					}))
				}
			}
		},
	}
}

// rings are the logs of the services. A service that is removed and added again gets another log;
// its line numbers continue.
type rings struct {
	mu  sync.Mutex
	all map[string]countedRing
}

// countedRing is a service's log.
type countedRing struct {
	ring   *supervise.LogRing
	before uint64 // number of lines in the former logs
}

func (c countedRing) newest() uint64 { return c.before + c.ring.Newest() }

// tail calls `each` for each line after the sequence number `after`, until the context ends or
// `each` returns an error.
func (c countedRing) tail(ctx context.Context, after uint64, each func(supervise.LogLine) error) {
	for seq := after - min(after, c.before); ; {
		lines, _, err := c.ring.After(ctx, seq)
		if err != nil {
			return
		}
		for _, l := range lines {
			if each(l) != nil {
				return
			}
			seq = l.Seq
		}
	}
}

// set sets the present log of a service.
func (r *rings) set(service string, ring *supervise.LogRing) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[string]countedRing{}
	}
	have, known := r.all[service]
	switch {
	case !known:
		r.all[service] = countedRing{ring: ring}
	case have.ring != ring:
		r.all[service] = countedRing{ring, have.newest()}
	}
}

func (r *rings) get() map[string]countedRing {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.all)
}
