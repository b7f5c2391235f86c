package logship

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/time/rate"

	"github.com/orlop-os/orlop/machined/logship/sender"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/otlp"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// PodDeps is the environment for the logs of pods, which podlogd reads.
type PodDeps struct {
	// Positions returns the directory of the positions of podlogd; empty while no disk is mounted.
	Positions func() string
	// Listen opens the socket of podlogd.
	Listen func() (net.Listener, error)
}

// podShipment passes requests of podlogd on to a receiver. It has a connection of its own, so pods
// do not delay the records of the machine.
type podShipment struct {
	mu     sync.Mutex // held during a request
	sender *sender.Sender
	writes *rate.Limiter // limits the writes of the positions
}

// positionWrites returns the limit for writes of the positions. podlogd stores them every 10 s, and
// at its end. Without the limit, a compromised podlogd would delay the other writes to the disk.
func positionWrites() *rate.Limiter { return rate.NewLimiter(rate.Every(5*time.Second), 10) }

// newPodShipment returns the shipment of the logs of pods to a receiver; nil if the receiver does
// not get these logs. c is the configuration of its sender.
func newPodShipment(r config.Receiver, c sender.Config) *podShipment {
	if !r.GetsPods() {
		return nil
	}
	c.Name, c.Sources = r.Name+"/pods", nil
	return &podShipment{sender: sender.New(c), writes: positionWrites()}
}

// maxPodRecords is the maximum number of records in a request of podlogd.
const maxPodRecords = 4096

// preparePods opens the socket of podlogd as soon as a receiver gets the logs of pods, and removes
// the positions of former receivers. The socket stays open.
func (s *Shipper) preparePods(receivers []config.Receiver) error {
	if s.listens {
		if dir := s.deps.Pods.Positions(); dir != "" {
			return s.prepare(dir, receivers)
		}
		return nil
	}
	if !slices.ContainsFunc(receivers, config.Receiver.GetsPods) {
		return nil
	}
	listener, err := s.deps.Pods.Listen()
	if err != nil {
		return fmt.Errorf("logs of pods: %w", err)
	}
	s.listens = true
	server := http.Server{
		Handler: s.podHandler(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		ErrorLog: log.New(io.Discard, "", 0), // podlogd reports the end of a connection itself
	}
	panics.Go("logs of pods", func() {
		// up to four receivers, each with a request and its repetition
		err := server.Serve(netutil.LimitListener(listener, 8))
		s.deps.Event("failure", fmt.Sprintf("the socket for the logs of pods has ended: %v; reboot the machine", err))
	})
	return nil
}

// podHandler serves the calls of podlogd (nodespec.PodLogsURL).
func (s *Shipper) podHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{receiver}"+otlp.Path, s.passPods)
	mux.HandleFunc("GET /{receiver}"+nodespec.PodLogsPositions, func(w http.ResponseWriter, r *http.Request) {
		s.withPositions(w, r, func(_ *podShipment, file string) error {
			text, err := os.ReadFile(file)
			if err == nil {
				_, err = w.Write(text)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
	})
	mux.HandleFunc("PUT /{receiver}"+nodespec.PodLogsPositions, func(w http.ResponseWriter, r *http.Request) {
		s.withPositions(w, r, func(pods *podShipment, file string) error {
			text, err := io.ReadAll(r.Body)
			if err != nil {
				return err
			}
			if !pods.writes.Allow() {
				return errors.New("the positions are written too often")
			}
			return safefile.WriteFile(file, text, 0o600)
		})
	})
	return http.MaxBytesHandler(mux, nodespec.MaxPodLogsBody)
}

// podsOf returns the pod shipment of the receiver that a call names. Without a shipment, it answers
// 404 and returns nil.
func (s *Shipper) podsOf(w http.ResponseWriter, r *http.Request) *podShipment {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.all {
		if one.to.Name == r.PathValue("receiver") && one.pods != nil {
			return one.pods
		}
	}
	http.Error(w, "this receiver does not get the logs of pods", http.StatusNotFound)
	return nil
}

// passPods passes a request on. It answers with success if the receiver has accepted the records,
// or rejected them: podlogd must not repeat rejected records. After any other answer, podlogd
// repeats the request.
func (s *Shipper) passPods(w http.ResponseWriter, r *http.Request) {
	to := s.podsOf(w, r)
	if to == nil {
		return
	}
	records, err := strconv.Atoi(r.URL.Query().Get("records"))
	if err != nil || records < 1 || records > maxPodRecords {
		http.Error(w, "the number of records is not in 1 to "+strconv.Itoa(maxPodRecords), http.StatusUnprocessableEntity)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	if err := to.sender.Pass(r.Context(), body, records); err != nil {
		if refusal := (*otlp.Refusal)(nil); errors.As(err, &refusal) {
			w.Header().Set("Retry-After", strconv.Itoa(int(refusal.Wait.Seconds())))
		}
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// withPositions finds the receiver that the request names, and calls the function do with the
// receiver's positions file.
func (s *Shipper) withPositions(w http.ResponseWriter, r *http.Request, do func(pods *podShipment, file string) error) {
	pods := s.podsOf(w, r)
	if pods == nil {
		return
	}
	dir := s.deps.Pods.Positions()
	if dir == "" {
		http.Error(w, "no disk is mounted", http.StatusServiceUnavailable)
		return
	}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = do(pods, filepath.Join(dir, r.PathValue("receiver")+".json"))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
