package machinetest

import (
	"context"
	"net"
	"slices"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/net/bpf"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/kernel/capture"
	"github.com/orlop-os/orlop/pkg/service/profile"
)

// debugService has a single link, eth0. A capture on it has three packets, and reports two more as
// dropped. It evaluates the program of the filter, as the kernel does.
type debugService struct{ api.UnimplementedDebugServer }

// Capture implements api.DebugServer.
func (debugService) Capture(r *api.CaptureRequest, stream grpc.ServerStreamingServer[api.CaptureResponse]) error {
	if r.Link != "eth0" {
		return status.Errorf(codes.NotFound, "link %s: cannot capture: there is no such link; links that are up: eth0, lo", r.Link)
	}
	filter, err := capture.Decode(r.Filter)
	if err != nil {
		return err
	}
	program, err := capture.Program(capture.Ethernet, filter)
	if err != nil {
		return err
	}
	instructions, _ := bpf.Disassemble(program)
	vm, err := bpf.NewVM(instructions)
	if err != nil {
		return err
	}
	if err := stream.Send(&api.CaptureResponse{LinkType: uint32(capture.Ethernet)}); err != nil {
		return err
	}
	var passed []*api.Packet
	for i, data := range packets() {
		if n, err := vm.Run(data); err != nil || n == 0 {
			continue
		}
		kept := data
		if r.Snaplen > 0 {
			kept = data[:min(int(r.Snaplen), len(data))]
		}
		passed = append(passed, &api.Packet{TimeNs: now.AsTime().Add(time.Duration(i) * time.Microsecond).UnixNano(), Length: uint32(len(data)), Data: kept})
	}
	if r.Count > 0 {
		return stream.Send(&api.CaptureResponse{Packets: passed[:min(int(r.Count), len(passed))]})
	}
	if err := stream.Send(&api.CaptureResponse{Packets: passed}); err != nil {
		return err
	}
	if r.GetDuration().AsDuration() == 10*time.Minute { // a script cancels this call
		<-stream.Context().Done()
		return status.FromContextError(stream.Context().Err()).Err()
	}
	return stream.Send(&api.CaptureResponse{Dropped: 2})
}

// packets returns a DNS query, the first packet of a connection to a web server, and a packet of a
// connection to the API.
func packets() [][]byte {
	ip := func(p layers.IPProtocol) *layers.IPv4 {
		return &layers.IPv4{Version: 4, IHL: 5, TTL: 64, SrcIP: net.IP{10, 0, 0, 11}, DstIP: net.IP{10, 0, 0, 1}, Protocol: p}
	}
	var all [][]byte
	for _, above := range [][]gopacket.SerializableLayer{
		{ip(layers.IPProtocolUDP), &layers.UDP{SrcPort: 40000, DstPort: 53}, gopacket.Payload("which?")},
		{ip(layers.IPProtocolTCP), &layers.TCP{SrcPort: 40001, DstPort: 80, SYN: true}},
		{ip(layers.IPProtocolTCP), &layers.TCP{SrcPort: 50000, DstPort: 40002, ACK: true}, gopacket.Payload("secret")},
	} {
		buffer := gopacket.NewSerializeBuffer()
		ethernet := &layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4}
		if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true}, slices.Insert(above, 0, gopacket.SerializableLayer(ethernet))...); err != nil {
			panic(err) // the packets are constant
		}
		all = append(all, buffer.Bytes())
	}
	return all
}

// Profile implements api.DebugServer.
func (debugService) Profile(ctx context.Context, r *api.ProfileRequest) (*api.ProfileResponse, error) {
	if r.Process != "machined" && r.Process != "apid" {
		return nil, status.Errorf(codes.NotFound, "process %q: there is none that gives profiles; there are apid, machined", r.Process)
	}
	order, err := profile.Parse(r.Kind, r.GetDuration().AsDuration())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	text, err := profile.Profile(ctx, order)
	return &api.ProfileResponse{Profile: text}, err
}
