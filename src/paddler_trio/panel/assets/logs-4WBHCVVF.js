import{C as g,s as o,v as t}from"./chunk-CEJDHSPC.js";function e(){return o(g,{title:"Logs",children:o(t,{icon:"logs",title:"Nothing to show"})})}export{e as default};
