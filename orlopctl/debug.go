package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/flags"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/kernel/capture"
	"github.com/orlop-os/orlop/pkg/service/profile"
)

func captureCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var filter, out string
	var duration time.Duration
	request := &api.CaptureRequest{}
	c := &cobra.Command{
		Use:   "capture LINK",
		Short: "Record the packets that pass a link",
		Long: "Record the packets that pass a link, as a pcap file for Wireshark or `tcpdump -r`. The capture ends after --duration, after\n" +
			"--count packets, or with Ctrl-C. It leaves out connections to the machine's API (TCP port 50000), because the captured packets\n" +
			"travel there. Packets can contain secrets: the command needs the role admin, and the audit log records it.\n\n" + capture.Language,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			program, err := capture.Compile(filter)
			if err != nil {
				return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("--filter: %w", err), Hint: "`orlopctl capture --help` describes filters"}
			}
			if _, terminal := ios.Terminal(); terminal && out == "-" {
				return exit.Usagef("--out: packets are nothing for a terminal; name a file, or send them to a program: `| tcpdump -nr -`")
			}
			if request.Filter, err = capture.Encode(program); err != nil {
				return err
			}
			request.Link, request.Duration = args[0], connect.DurationOf(duration)
			return conn.Stream(func(ctx context.Context, c *client.Client) error { return savePackets(ctx, ios, c, request, out) })
		},
	}
	f := c.Flags()
	f.StringVar(&filter, "filter", "", "record only packets that match, for example \"tcp port 443 and host 10.0.0.12\"")
	f.Uint64Var(&request.Count, "count", 0, "end after this number of packets")
	flags.Positive(f, "count", &request.Count)
	f.DurationVar(&duration, "duration", 0, "end after this time (default 1m, at most 10m)")
	flags.Positive(f, "duration", &duration)
	f.Uint32Var(&request.Snaplen, "snaplen", 0, "record at most this number of bytes of each packet (default: all)")
	flags.Positive(f, "snaplen", &request.Snaplen)
	f.BoolVar(&request.Promiscuous, "promiscuous", false, "also record packets that are not addressed to the machine (promiscuous mode)")
	f.StringVar(&out, "out", "-", "write to this file; - for the standard output")
	return c
}

// savePackets writes the received packets to a file. It creates the file only after the machine has
// started the capture, so a rejected call leaves an existing file unchanged.
func savePackets(ctx context.Context, ios *iostreams.Streams, c *client.Client, request *api.CaptureRequest, out string) error {
	stream, err := c.Debug.Capture(ctx, request)
	if err != nil {
		return err
	}
	begun, err := stream.Recv()
	if err != nil {
		return err
	}
	to, finish := ios.Out, func() error { return nil }
	if out != "-" {
		file, err := os.OpenFile(out, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("--out: cannot write: %w", err)
		}
		to, finish = file, file.Close
	}
	buffer := bufio.NewWriter(to)
	pcap := pcapgo.NewWriterNanos(buffer)
	snaplen := request.Snaplen
	if snaplen == 0 {
		snaplen = capture.MaxSnaplen
	}
	packets, dropped := 0, uint64(0)
	if err := pcap.WriteFileHeader(snaplen, layers.LinkType(begun.LinkType)); err != nil {
		return errors.Join(fmt.Errorf("--out: cannot write: %w", err), finish())
	}
	err = connect.Each(stream.Recv, func(r *api.CaptureResponse) error {
		dropped = r.Dropped
		for _, p := range r.Packets {
			packets++
			about := gopacket.CaptureInfo{Timestamp: time.Unix(0, p.TimeNs), CaptureLength: len(p.Data), Length: int(p.Length)}
			if err := pcap.WritePacket(about, p.Data); err != nil {
				return fmt.Errorf("--out: cannot write: %w", err)
			}
		}
		return buffer.Flush() // a reader of the file sees the packets now
	})
	for _, last := range []func() error{buffer.Flush, finish} {
		if failed := last(); failed != nil && err == nil {
			err = fmt.Errorf("--out: cannot write: %w", failed)
		}
	}
	ios.Errorln(captured(packets, dropped))
	return err
}

func captured(packets int, dropped uint64) string {
	text := format.Count(packets, "packet")
	if dropped > 0 {
		text += fmt.Sprintf("; %d more were lost, because they arrived faster than they could be sent: capture fewer packets (--filter), or less of each (--snaplen)", dropped)
	}
	return text
}

func profileCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var out string
	var duration time.Duration
	request := &api.ProfileRequest{}
	c := &cobra.Command{
		Use:   "profile PROCESS",
		Short: "Profile the processor time or the memory of a process of the system",
		Long: "Take a profile of machined or of another process of the system itself (`orlopctl services`). The kind of the profile decides\n" +
			"what it shows: where the process spends its time (cpu), the memory in use (heap), all allocations since the start (allocs), or\n" +
			"the present stacks of all goroutines (goroutine). `go tool pprof FILE` opens it.",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			order, err := profile.Parse(request.Kind, duration)
			if err != nil {
				return exit.Usagef("--%w", err)
			}
			request.Process, request.Duration = args[0], connect.DurationOf(duration)
			return conn.CallFor(order.Duration, func(ctx context.Context, c *client.Client) error {
				answer, err := c.Debug.Profile(ctx, request)
				if err != nil {
					return err
				}
				if err := secretfile.Write(out, answer.Profile, true); err != nil {
					return err
				}
				ios.Println("wrote " + out + "; `go tool pprof " + out + "` opens it")
				return nil
			})
		},
	}
	f := c.Flags()
	f.StringVar(&request.Kind, "kind", profile.Kinds[0], "kind of the profile: "+strings.Join(profile.Kinds, ", "))
	f.DurationVar(&duration, "duration", 0, "length of the measurement, for kind cpu only (default 30s, at most 1m)")
	flags.Positive(f, "duration", &duration)
	f.StringVar(&out, "out", "", "write to this file")
	must(c.MarkFlagRequired("out"))
	return c
}
