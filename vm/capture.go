package vm

import (
	"bufio"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// captureSnap is the maximum number of bytes that the file contains of a frame: enough for all
// headers, and for complete DHCP and DNS messages. The file also contains the true length of each
// frame.
const captureSnap = 640

// capture writes frames to a pcap file. The zero value writes no file.
type capture struct {
	mu     sync.Mutex
	file   *os.File
	buffer *bufio.Writer
	pcap   *pcapgo.Writer
	err    error // the first error; no frame is written after it, so the file has no gaps
	done   chan struct{}
	ended  chan struct{}
}

// newCapture creates the capture file path. If path is empty, the capture writes no file.
func newCapture(path string) (*capture, error) {
	c := &capture{}
	if path == "" {
		return c, nil
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("capture: cannot create: %w", err)
	}
	c.file, c.buffer = file, bufio.NewWriterSize(file, 256<<10)
	c.pcap = pcapgo.NewWriterNanos(c.buffer)
	if err := c.pcap.WriteFileHeader(captureSnap, layers.LinkTypeEthernet); err != nil {
		file.Close()
		return nil, fmt.Errorf("capture: cannot write %s: %w", path, err)
	}
	c.done, c.ended = make(chan struct{}), make(chan struct{})
	go c.flushes()
	return c, nil
}

// flushes writes the buffered frames to the file every second, for readers of the file. If this
// process is killed, the file lacks only the frames of the last second.
func (c *capture) flushes() {
	defer close(c.ended)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.flush() // close reports the stored error
		case <-c.done:
			return
		}
	}
}

func (c *capture) write(eth []byte) {
	if c.file == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	info := gopacket.CaptureInfo{Timestamp: time.Now(), Length: len(eth), CaptureLength: min(len(eth), captureSnap)}
	c.err = c.pcap.WritePacket(info, eth[:info.CaptureLength])
}

func (c *capture) flush() error {
	if c.file == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = c.buffer.Flush()
	}
	if c.err != nil {
		return fmt.Errorf("capture: cannot write %s: %w", c.file.Name(), c.err)
	}
	return nil
}

func (c *capture) close() error {
	if c.file == nil {
		return nil
	}
	close(c.done)
	<-c.ended
	if err := c.flush(); err != nil {
		c.file.Close()
		return err
	}
	return c.file.Close()
}
