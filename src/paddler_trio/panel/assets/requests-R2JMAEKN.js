import{E as e,R as o,x as t}from"./chunk-74RGZPHY.js";function s(){return t(o,{title:"Requests",children:t(e,{icon:"requests",title:"Nothing to show"})})}export{s as default};
